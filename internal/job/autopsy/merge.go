package autopsy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/muster-run/muster/internal/format/pyjson"
	"github.com/muster-run/muster/internal/format/text"
)

// Brief is what other hosts need of the report to group the workers of all: the Python
// stacks, and where those without any are in the kernel.
func (r *Report) Brief() *Report {
	brief := *r
	brief.Workers = make([]Worker, 0, len(r.Workers))
	for _, w := range r.Workers {
		short := Worker{
			Host: cmp.Or(w.Host, r.Host), Rank: w.Rank, LocalRank: w.LocalRank, PID: w.PID, State: w.State,
			Python: w.Python, Same: w.Same, Problems: w.Problems, Silent: w.Silent,
		}
		if r.Collectives == nil { // else nobody needs them
			short.Dumps = r.dumps(&w)
		}
		for _, c := range w.Children {
			if len(c.Python.Threads) > 0 {
				short.Children = append(short.Children, c)
			}
		}
		for _, t := range w.Native.Threads {
			if t.TID == w.PID {
				short.Native.Threads = []NativeThread{t}
			}
		}
		brief.Workers = append(brief.Workers, short)
	}
	return &brief
}

// Pack is a Brief as JSON. Where it would be longer than some bytes, the workers in the same place
// share what tells that place (Shared), and the rest is left out. The error says that it is longer
// than limit all the same.
func (r *Report) Pack(should, limit int) ([]byte, error) {
	type plain Report // without what MarshalJSON adds
	body, err := json.Marshal((*plain)(r))
	if err == nil && len(body) > should {
		body, err = json.Marshal((*plain)(r.short()))
	}
	if err == nil && len(body) > limit {
		err = fmt.Errorf("their evidence has %s, and the limit is %s", text.Size(int64(len(body))), text.Size(int64(limit)))
	}
	return body, err
}

// short is the report with the stacks of each place once.
func (r *Report) short() *Report {
	short := *r
	short.Workers, short.Shared = slices.Clone(r.Workers), nil
	same := map[string]int{}
	for i, v := range r.views() {
		w, from := &short.Workers[i], &r.Workers[i]
		if r.shares(from) {
			from = &r.Shared[from.Same-1]
		}
		if same[v.key] == 0 {
			s := Worker{PID: from.PID, State: from.State, Python: from.Python.short(), Native: from.Native,
				Problems: from.Problems}
			for _, c := range from.Children {
				c.Python = c.Python.short()
				s.Children = append(s.Children, c)
			}
			short.Shared = append(short.Shared, s)
			same[v.key] = len(short.Shared)
		}
		*w = Worker{Host: w.Host, Rank: w.Rank, LocalRank: w.LocalRank, PID: w.PID, State: w.State, Same: same[v.key],
			Silent: w.Silent, Dumps: w.Dumps}
	}
	return &short
}

// short has only the threads that say where a process is.
func (p Python) short() Python {
	main, telling := tellingThread(p.Threads)
	p.Threads = slices.DeleteFunc(slices.Clone(p.Threads), func(t Thread) bool {
		is := func(u *Thread) bool { return u != nil && u.ID == t.ID && u.TID == t.TID && u.Name == t.Name }
		return !is(main) && !is(telling)
	})
	return p
}

// With is the report with the workers of other hosts, by rank, except those that it has already.
// missing says of which hosts there is nothing.
func (r *Report) With(others []*Report, missing []string) *Report {
	all := *r
	all.Workers = slices.Clone(r.Workers)
	for i := range all.Workers {
		all.Workers[i].Host = r.Host
	}
	for _, other := range others {
		before := len(all.Shared)
		all.Collectives = cmp.Or(all.Collectives, other.Collectives)
		all.Shared = append(slices.Clip(all.Shared), other.Shared...)
		for _, w := range other.Workers {
			if !slices.ContainsFunc(r.Workers, func(own Worker) bool { return own.Rank == w.Rank }) {
				if w.Same > 0 {
					w.Same += before
				}
				all.Workers = append(all.Workers, w)
			}
		}
	}
	slices.SortStableFunc(all.Workers, func(a, b Worker) int { return cmp.Compare(a.Rank, b.Rank) })
	all.Missing = append(slices.Clone(r.Missing), missing...)
	return &all
}

// Adopt takes over what the agent of these workers says of their flight recorders.
func (r *Report) Adopt(agents *Report) {
	r.Collectives = cmp.Or(r.Collectives, agents.Collectives)
	for _, w := range agents.Workers {
		if i := slices.IndexFunc(r.Workers, func(own Worker) bool { return own.PID == w.PID }); i >= 0 {
			r.Workers[i].Dumps, r.Workers[i].Silent = w.Dumps, w.Silent
		}
	}
}

// What the Reports of other hosts may take of memory, in bytes.
const (
	maxPeer  = 16 << 20  // one of them: the stacks of 128 workers take less
	maxPeers = 256 << 20 // all of them
)

// Peers reads what other hosts say of their workers, as the answers to one question. A JSON of a
// few bytes may stand for a Report of many, so its weight is found out before it is decoded. The
// zero Peers is ready to use, also concurrently.
type Peers struct {
	weight atomic.Int64 // of all that were admitted
}

// Admit says what is wrong with an answer that is not JSON, or that is too large to be decoded.
func (p *Peers) Admit(body []byte) error {
	workers, others := pyjson.Elements(body)
	weight := int64(len(body)) + int64(workers)*int64(reflect.TypeFor[Worker]().Size()) +
		int64(others)*int64(max(reflect.TypeFor[Process]().Size(), reflect.TypeFor[NativeThread]().Size(),
			reflect.TypeFor[Flight]().Size()))
	switch {
	case weight > maxPeer:
		return fmt.Errorf("its evidence is too large: it takes %s of memory, and the limit is %s", text.Size(weight),
			text.Size(maxPeer))
	case !json.Valid(body):
		return errors.New("the answer is not JSON")
	case p.weight.Add(weight) > maxPeers:
		p.weight.Add(-weight)
		return fmt.Errorf("the evidence of all hosts is too large: the limit is %s", text.Size(maxPeers))
	}
	return nil
}

// Read reads a Report. What is shown of it as one line is one.
func (p *Peers) Read(body []byte) (*Report, error) {
	if err := p.Admit(body); err != nil {
		return nil, err
	}
	r := &Report{}
	if err := json.Unmarshal(body, r); err != nil {
		return nil, err
	}
	text.Each(r, func(s string) string { return text.Line(s, len(s)) })
	return r, nil
}
