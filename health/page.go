package health

import (
	"cmp"
	_ "embed"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/internal/format/text"
)

//go:embed status.css
var css []byte

//go:embed status.js
var js []byte

// asset is what the page loads.
func (s *Server) asset(w http.ResponseWriter, r *http.Request) reply {
	w.Header().Set("Cache-Control", "no-cache") // another program may listen here tomorrow
	if r.URL.Path == "/status.css" {
		return reply{http.StatusOK, "text/css; charset=utf-8", css}
	}
	return reply{http.StatusOK, "text/javascript; charset=utf-8", js}
}

// How much of a long list the page shows.
const (
	shownHosts  = 128
	shownEvents = 8
	openLogs    = 16 // of more workers than that, logs are folded
)

// icon is a disc in the colour of the job.
const icon = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Ccircle cx='8' " +
	"cy='8' r='7' fill='%23"

var iconColour = map[tone]string{calm: "7a8594", good: "2f9e63", wait: "3f7fbf", warn: "c98a1b", bad: "cf4436",
	done: "1f9aa0"}

// renderPage makes the status page. It is whole without its script, which only
// fetches it again and puts what has changed in its place.
func renderPage(s *jobstate.State) []byte {
	p := &page{s: s}
	job := &s.Job
	t := phaseTone(job)
	if job.Preempted != nil {
		t = warn
	}
	p.put(`<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%s · %s</title>
<link id="icon" rel="icon" href="%s">
<link rel="stylesheet" href="status.css"><script src="status.js" defer></script>
<noscript><meta http-equiv="refresh" content="2"></noscript>
</head><body>
<main id="main" data-time="%d">
`, p.headline(), p.name(), icon+iconColour[t]+"'/%3E%3C/svg%3E", int(s.Time.UnixMilli()))
	p.header(t)
	p.failures()
	p.figures()
	p.put("<div class=\"cols\">\n<div class=\"wide\">\n")
	p.workers()
	p.logs()
	p.put("</div>\n<div class=\"side\">\n")
	p.hosts()
	p.events()
	p.put("</div>\n</div>\n")
	zone, _ := s.Time.Zone()
	p.put(`</main>
<footer>muster · times are %s of %s · <a href="v1/state">state</a> <a href="metrics">metrics</a> <a href="healthz">health</a></footer>
</body></html>
`, zone, s.Host.Name)
	return p.Bytes()
}

// name is what people call the job.
func (p *page) name() string { return cmp.Or(p.s.Job.Entrypoint, p.s.Job.RunID) }

// headline says in a word or two how the job is.
func (p *page) headline() string {
	job := &p.s.Job
	switch {
	case job.Preempted != nil && job.Phase == jobstate.Ended:
		return "preempted"
	case job.Preempted != nil:
		return "being preempted"
	}
	if job.Phase == jobstate.Ended {
		return strings.ToLower(job.State)
	}
	if job.Phase == jobstate.Running && !job.Runs() {
		return string(job.Phase) + ", " + strings.ToLower(job.State)
	}
	return string(job.Phase)
}

func (p *page) header(t tone) {
	job := &p.s.Job
	p.put(`<header><h1>%s</h1><span id="phase" class="pill %s">%s</span>`, p.name(), t, p.headline())
	if job.WaitingFor != "" {
		p.put(`<span class="waiting">waiting: %s</span>`, job.WaitingFor)
	}
	if by := job.Preempted; by != nil {
		p.put(`<span class="waiting">host %s received %s at %s</span>`, by.Host, by.Signal,
			by.Time.In(p.s.Time.Location()).Format(time.TimeOnly))
	}
	p.put("<span id=\"live\"></span>\n<p>")
	var facts []string
	if job.Entrypoint != "" {
		facts = append(facts, "run "+job.RunID)
	}
	if job.Role != "" {
		facts = append(facts, job.Role)
	}
	if job.Backend != "" {
		facts = append(facts, strings.TrimSpace(job.Backend+" rendezvous "+job.Endpoint))
	}
	facts = append(facts, fmt.Sprintf("host %d, %s", p.s.Host.GroupRank, p.s.Host.Name))
	for i, f := range facts {
		if i > 0 {
			p.put(` <i>·</i> `)
		}
		p.put(`<span>%s</span>`, f)
	}
	p.put("</p></header>\n")
}

// failures are red while nothing else has come of them.
func (p *page) failures() {
	if len(p.s.Failures) == 0 {
		return
	}
	class := bad
	title := "Failed"
	switch phase := p.s.Job.Phase; {
	case phase == jobstate.Running, phase == jobstate.ExitBarrier,
		phase == jobstate.InRendezvous && p.s.Host.GroupRank < 0: // the job may run without this host
		class, title = warn, "The attempt before failed"
	case phase == jobstate.InRendezvous, phase == jobstate.Assigning, phase == jobstate.Restarting:
		class, title = warn, "Failed; the workers start again"
	}
	if p.s.Job.Preempted != nil {
		class, title = warn, "Failed before the job was preempted, or meanwhile"
	}
	p.put("<section id=\"failures\" class=\"%s\"><h2>%s</h2>\n", class, title)
	const shown = 5
	for i, f := range p.s.Failures[:min(len(p.s.Failures), shown)] {
		p.put(`<div class="failure" id="f%d"><p><b>rank %d</b> %s`, i, f.Rank, f.Cause)
		if f.Root {
			p.put(` <span class="tag">root cause</span>`)
		}
		p.put(`<small>`)
		if f.Host != "" {
			p.put(`%s, `, f.Host)
		}
		p.put(`local rank %d`, f.LocalRank)
		if f.PID > 0 {
			p.put(`, pid %d`, f.PID)
		}
		if !f.Time.IsZero() {
			p.put(`, %s ago`, span(p.s.Time.Sub(f.Time)))
		}
		p.put("</small></p>")
		if f.Message != "" {
			p.put("<pre>%s</pre>", strings.TrimSpace(f.Message))
		}
		if f.Report != "" {
			p.put(`<p><small>report: %s</small></p>`, f.Report)
		}
		p.put("</div>\n")
	}
	if n := len(p.s.Failures) - shown; n > 0 {
		p.put("<p><small>and %s</small></p>\n", text.Count(n, "more failure"))
	}
	p.put("</section>\n")
}

// figures are the numbers of the job.
func (p *page) figures() {
	s, job := p.s, &p.s.Job
	p.put(`<dl class="figures">`)
	figure := func(name, value, note string) {
		p.put("<div><dt>%s</dt><dd>%s</dd>", name, value)
		if note != "" {
			p.put("<dd class=\"note\">%s</dd>", note)
		}
		p.put("</div>\n")
	}
	figure("round", strconv.Itoa(job.Round), "")
	note := ""
	if job.MaxHosts > 0 {
		note = fmt.Sprintf("%d to %d", job.MinHosts, job.MaxHosts)
		if job.MinHosts == job.MaxHosts {
			note = fmt.Sprintf("of %d", job.MaxHosts)
		}
	}
	figure("hosts", strconv.Itoa(len(s.Hosts)), note)
	figure("world size", strconv.Itoa(job.WorldSize), workersShown(s))
	figure("restarts", strconv.Itoa(job.Restarts), fmt.Sprintf("of %d", job.MaxRestarts))
	if !job.Started.IsZero() {
		figure("since start", span(s.Time.Sub(job.Started)), job.Started.In(s.Time.Location()).Format("2 Jan 15:04"))
	}
	var cpu float64
	var rss int64
	gpus, percent := gpusOf(s, func(*jobstate.Worker) bool { return true })
	for i := range s.Workers {
		cpu += s.Workers[i].Usage.CPUPercent
		rss += s.Workers[i].Usage.RSSBytes
	}
	if rss > 0 {
		figure("CPU", fmt.Sprintf("%.1f", cpu/100), "CPUs busy")
		figure("memory", text.Size(rss), "of workers")
	}
	if gpus > 0 {
		figure("GPU", fmt.Sprintf("%d %%", percent), "of "+text.Count(gpus, "GPU"))
	}
	p.put("</dl>\n")
}

// gpusOf counts the GPUs of some workers, and says how busy they are on average.
func gpusOf(s *jobstate.State, of func(*jobstate.Worker) bool) (n, percent int) {
	for i := range s.Workers {
		if w := &s.Workers[i]; w.GPU != nil && w.GPU.Percent != nil && of(w) {
			n, percent = n+1, percent+*w.GPU.Percent
		}
	}
	return n, percent / max(n, 1)
}

// workersShown says of which workers the page knows.
func workersShown(s *jobstate.State) string {
	what := text.Count(len(s.Workers), "worker")
	switch {
	case len(s.Hosts) < 2 || len(s.Workers) == s.Job.WorldSize:
		return what
	case !slices.ContainsFunc(s.Workers, func(w jobstate.Worker) bool { return w.GroupRank != s.Host.GroupRank }):
		return what + " here"
	}
	return what + " known"
}

// cell writes one cell of a worker's row; label names it where there is no room
// for columns.
func (p *page) cell(label, class, value string) {
	p.put(`<td data-l="%s" class="%s">%s</td>`, label, class, value)
}

func (p *page) workers() {
	if len(p.s.Workers) == 0 {
		p.put("<section id=\"workers\"><h2>Workers</h2><p class=\"none\">None run.</p></section>\n")
		return
	}
	p.gpus = slices.ContainsFunc(p.s.Workers, func(w jobstate.Worker) bool { return w.GPU != nil })
	p.many = slices.ContainsFunc(p.s.Workers, func(w jobstate.Worker) bool { return w.GroupRank != p.s.Workers[0].GroupRank })
	title, host, gpu := markup("Workers of this host"), markup(""), markup("")
	if p.gpus {
		gpu = `<th class="n">GPU<th class="n">GPU memory`
	}
	if p.many {
		title, host = "Workers", "<th>host"
	}
	p.put(`<section id="workers"><h2>%s</h2>
<table class="workers"><thead><tr><th>rank%s<th>local<th>pid<th>state<th class="n">CPU<th class="n">memory%s<th class="n">step<th class="n">last output<th class="n">runs</tr></thead><tbody>
`, title, host, gpu)
	for i := range p.s.Workers {
		p.worker(&p.s.Workers[i])
	}
	p.put("</tbody></table></section>\n")
}

func (p *page) worker(w *jobstate.Worker) {
	p.put(`<tr id="w%d">`, w.Rank)
	p.cell("rank", "rank", strconv.Itoa(w.Rank))
	if p.many {
		p.cell("host", "", orDash(w.Host != "", w.Host))
	}
	p.cell("local rank", "dim", strconv.Itoa(w.LocalRank))
	p.cell("pid", "dim", orDash(w.PID > 0, strconv.Itoa(w.PID)))
	p.put(`<td data-l="state" class="state"><b class="dot %s"></b>%s`, toneOf(w.State), w.State)
	if w.Exit != nil {
		p.put(` <small>%s</small>`, text.Clip(w.Exit.String(), 150))
	}
	p.put("</td>")
	used := w.Usage.Processes > 0
	p.cell("CPU", "n", orDash(used, fmt.Sprintf("%.0f %%", w.Usage.CPUPercent)))
	p.cell("memory", "n", orDash(used, text.Size(w.Usage.RSSBytes)))
	if p.gpus {
		p.gpu(w.GPU)
	}
	step := "–"
	if h := w.Heartbeat; h != nil {
		step = strconv.FormatInt(h.Step, 10)
		if pace := h.Pace(); pace != "" {
			step += " · " + pace
		}
	}
	p.cell("step", "n", step)
	p.cell("last output", "n", orDash(!w.LastOutput.IsZero(), span(p.s.Time.Sub(w.LastOutput))+" ago"))
	end := p.s.Time
	if w.Exit != nil && !w.Exit.Time.IsZero() {
		end = w.Exit.Time
	}
	p.cell("runs", "n", orDash(!w.Started.IsZero(), span(end.Sub(w.Started))))
	p.put("</tr>\n")
}

// gpu writes the cells of a worker's GPU.
func (p *page) gpu(g *agent.GPU) {
	busy, memory := "–", "–"
	if g != nil {
		memory = text.Size(g.UsedBytes) + " of " + text.Size(g.TotalBytes)
		if g.Percent != nil {
			busy = strconv.Itoa(*g.Percent) + " %"
		}
	}
	p.cell("GPU", "n", busy)
	p.cell("GPU memory", "n dim", memory)
}

func orDash(known bool, value string) string {
	if known {
		return value
	}
	return "–"
}

func (p *page) hosts() {
	if len(p.s.Hosts) == 0 {
		return
	}
	p.put("<section id=\"hosts\"><h2>Hosts <small>%d in round %d</small></h2>\n<ul class=\"hosts\">\n", len(p.s.Hosts),
		p.s.Job.Round)
	for _, h := range p.s.Hosts[:min(len(p.s.Hosts), shownHosts)] {
		here := markup("")
		if h.GroupRank == p.s.Host.GroupRank {
			here = ` class="here"`
		}
		p.put(`<li id="h%d"%s><b class="dot %s"></b><span class="rank">%d</span> <span>%s</span>`, h.GroupRank, here,
			toneOf(h.State), h.GroupRank, h.Name)
		p.put(`<small class="state">%s`, h.State)
		if h.State != "" && h.Workers > 0 {
			p.put(`, `)
		}
		if h.Workers > 0 {
			p.put(`%s`, text.Count(h.Workers, "worker"))
		}
		if n, percent := gpusOf(p.s, func(w *jobstate.Worker) bool { return w.GroupRank == h.GroupRank }); n > 0 {
			p.put(`, GPU %d %%`, percent)
		}
		p.put("</small>")
		if h.Problem != "" {
			p.put(`<small class="problem">%s</small>`, text.Clip(h.Problem, 300))
		}
		p.put("</li>\n")
	}
	p.put("</ul>\n")
	if n := len(p.s.Hosts) - shownHosts; n > 0 {
		p.put("<p><small>and %s</small></p>\n", text.Count(n, "more host"))
	}
	p.put("</section>\n")
}

// logs are the last lines of each worker.
func (p *page) logs() {
	kept := false
	for i := range p.s.Workers {
		w := &p.s.Workers[i]
		kept = kept || w.Stdout != "" || w.Stderr != "" || len(w.StdoutLines)+len(w.StderrLines) > 0
	}
	if !kept {
		return
	}
	open := markup(" open")
	if len(p.s.Workers) > openLogs {
		open = ""
	}
	p.put("<section id=\"logs\" class=\"logs\"><h2>Last lines</h2>\n<div class=\"grid\">\n")
	for i := range p.s.Workers {
		p.log(&p.s.Workers[i], open)
	}
	p.put("</div></section>\n")
}

func (p *page) log(w *jobstate.Worker, open markup) {
	p.put(`<details id="l%d"%s><summary><b class="dot %s"></b><b>rank %d</b>`, w.Rank, open, toneOf(w.State), w.Rank)
	if p.many {
		p.put(` <small>%s</small>`, w.Host)
	}
	for _, stream := range []struct{ name, path string }{{"stdout", w.Stdout}, {"stderr", w.Stderr}} {
		if stream.path != "" {
			p.put(` <a href="v1/logs?rank=%d&amp;stream=%s" title="%s">%s</a>`, w.Rank, stream.name, stream.path, stream.name)
		}
	}
	p.put("</summary>")
	p.put("<pre class=\"out\">%s</pre>", strings.Join(w.StdoutLines, "\n"))
	if len(w.StderrLines) > 0 {
		p.put("<pre class=\"err\">%s</pre>", strings.Join(w.StderrLines, "\n"))
	}
	p.put("</details>\n")
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
