package health

import (
	"fmt"
	"time"
)

// A band is a phase on the time line.
type band struct {
	from, to time.Time
	phase    Phase
	round    int
}

// bands returns the phases that a State's moments tell of, without gaps.
func bands(s *State, begin, end time.Time) []band {
	current := band{from: begin, phase: inRendezvous}
	var list []band
	for _, m := range s.Timeline {
		if m.Phase == "" || m.Phase == current.phase && m.Round == current.round {
			continue
		}
		current.to = m.Time
		if current.to.After(current.from) {
			list = append(list, current)
		}
		current = band{from: m.Time, phase: m.Phase, round: m.Round}
	}
	current.to = end
	if end.After(current.from) && current.phase != ended {
		list = append(list, current)
	}
	return list
}

// extent returns the times that the time line covers.
func extent(s *State) (begin, end time.Time) {
	begin, end = s.Job.Started, s.Time
	if n := len(s.Timeline); n > 0 {
		if s.Job.Phase == ended {
			end = s.Timeline[n-1].Time
		}
		if begin.IsZero() || n >= maxTimeline { // the beginning is not known any more
			begin = s.Timeline[0].Time
		}
	}
	if begin.IsZero() {
		begin = end
	}
	return begin, maxTime(end, begin.Add(time.Second))
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// A ruler says where on the time line a time is, in percent.
type ruler struct{ begin, end time.Time }

func (r ruler) at(t time.Time) float64 {
	return min(max(float64(t.Sub(r.begin))/float64(r.end.Sub(r.begin))*100, 0), 100)
}

// steps are the distances that marks on the time line may have.
var steps = []time.Duration{
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour, 2 * 24 * time.Hour, 7 * 24 * time.Hour,
}

// ticks returns up to six round times of day between begin and end, and the form
// to write them in.
func (r ruler) ticks(zone *time.Location) (list []time.Time, form string) {
	const most = 6
	step := r.end.Sub(r.begin) / most
	for _, s := range steps {
		if s >= step {
			step = s
			break
		}
	}
	form = "15:04"
	switch {
	case step < time.Minute:
		form = "15:04:05"
	case step >= 24*time.Hour:
		form = "2 Jan"
	}
	_, offset := r.begin.In(zone).Zone()
	shift := time.Duration(offset) * time.Second
	t := r.begin.Add(shift).Truncate(step).Add(-shift)
	for ; !t.After(r.end) && len(list) <= most; t = t.Add(step) {
		if !t.Before(r.begin) {
			list = append(list, t)
		}
	}
	return list, form
}

// timeline draws the phases as bands, with marks for restarts, failures and changes
// of the set of hosts.
func (p *page) timeline() {
	begin, end := extent(p.s)
	r := ruler{begin, end}
	p.put("<section id=\"rounds\"><h2>Rounds and restarts</h2>\n<svg class=\"timeline\" height=\"82\" role=\"img\" "+
		"aria-label=\"%s of rounds and restarts\">\n",
		span(end.Sub(begin)))
	for _, b := range bands(p.s, begin, end) {
		x, width := r.at(b.from), max(r.at(b.to)-r.at(b.from), 0.25)
		label := string(b.phase)
		if b.phase == running {
			label = fmt.Sprintf("round %d", b.round)
		}
		p.put(`<svg x="%.3f%%" y="30" width="%.3f%%" height="26"><rect class="%s" width="100%%" height="26"/><title>%s, round %d: %s from %s</title>`,
			x, width, b.phase.tone(""), b.phase, b.round, span(b.to.Sub(b.from)),
			b.from.In(p.s.Time.Location()).Format(time.TimeOnly))
		switch {
		case width > 18:
			p.put(`<text x="7" y="17">%s</text>`, label)
		case width > 7:
			p.put(`<text class="roomy" x="7" y="17">%s</text>`, label)
			if b.phase == running {
				p.put(`<text class="tight" x="7" y="17">%d</text>`, b.round)
			}
		}
		p.put("</svg>\n")
	}
	p.marks(r)
	list, form := r.ticks(p.s.Time.Location())
	for i, t := range list {
		x := r.at(t)
		if x > 96 {
			continue
		}
		odd := markup("")
		if i%2 == 1 {
			odd = ` class="odd"`
		}
		p.put(`<g%s><line x1="%.3f%%" x2="%.3f%%" y1="60" y2="65"/><text class="tick" x="%.3f%%" y="78">%s</text></g>`+"\n",
			odd, x, x, x, t.In(p.s.Time.Location()).Format(form))
	}
	p.put("</svg>\n")
	p.legend()
	p.put("</section>\n")
}

// tone is that of a moment.
func (p *page) tone(m *Moment) tone {
	switch m.Kind {
	case kindFailure:
		return bad
	case kindRestart:
		return warn
	case kindHosts, kindLive:
		return wait
	case kindRound:
		return good
	case kindEnd:
		return p.s.Job.Phase.tone(p.s.Job.State)
	}
	return calm
}

// marks are the moments that are not phases.
func (p *page) marks(r ruler) {
	for i := range p.s.Timeline {
		m := &p.s.Timeline[i]
		shape, y := markup(""), 8
		switch m.Kind {
		case kindFailure:
			shape = `<path d="M-5,-5L5,5M5,-5L-5,5"/>`
		case kindRestart:
			shape, y = `<path d="M-5,-4H5L0,4Z"/>`, 22
		case kindHosts, kindLive:
			shape = `<circle r="4"/>`
		case kindEnd:
			shape = `<rect x="-4" y="-4" width="8" height="8"/>`
		default:
			continue
		}
		p.put(`<svg class="mark %s" x="%.3f%%" y="%d">%s<title>%s %s</title></svg>`+"\n",
			p.tone(m), r.at(m.Time), y, shape, m.Time.In(p.s.Time.Location()).Format(time.TimeOnly), m.Sentence())
	}
}

// Sentence is what has happened, and why.
func (m *Moment) Sentence() string {
	if m.Why == "" {
		return m.What
	}
	return m.What + ": " + m.Why
}

func (p *page) legend() {
	p.put("<p class=\"legend\">")
	for _, l := range []struct {
		tone tone
		name string
	}{{wait, "rendezvous"}, {good, "running"}, {warn, "restarting"}, {done, "exit barrier"}} {
		p.put(`<span><b class="dot %s"></b>%s</span> `, l.tone, l.name)
	}
	p.put(`<span class="key bad">✕ failure</span> <span class="key warn">▼ restart</span> <span class="key wait">● hosts changed</span></p>` + "\n")
}

// events are the moments in words, the newest first.
func (p *page) events() {
	n := len(p.s.Timeline)
	if n == 0 {
		return
	}
	p.put("<section id=\"events\"><h2>Events</h2>\n<ol class=\"events\">\n")
	for i := n - 1; i >= max(0, n-shownEvents); i-- {
		p.event(i)
	}
	p.put("</ol>\n")
	if n > shownEvents {
		p.put("<details id=\"older\"><summary>%d older</summary><ol class=\"events\">\n", n-shownEvents)
		for i := n - shownEvents - 1; i >= 0; i-- {
			p.event(i)
		}
		p.put("</ol></details>\n")
	}
	p.put("</section>\n")
}

func (p *page) event(i int) {
	m := &p.s.Timeline[i]
	p.put(`<li><time datetime="%s">%s</time><b class="dot %s"></b><span>%s`, m.Time.Format(time.RFC3339),
		m.Time.In(p.s.Time.Location()).Format(time.TimeOnly), p.tone(m), m.What)
	if m.Why != "" {
		p.put(` <small>%s</small>`, m.Why)
	}
	p.put("</span></li>\n")
}
