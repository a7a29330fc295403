package autopsy

import (
	"cmp"
	"slices"
)

// Brief is what other hosts need of the report to group the workers of all: the Python
// stacks, and where those without any are in the kernel.
func (r *Report) Brief() *Report {
	brief := *r
	brief.Workers = make([]Worker, 0, len(r.Workers))
	for _, w := range r.Workers {
		short := Worker{
			Host: cmp.Or(w.Host, r.Host), Rank: w.Rank, LocalRank: w.LocalRank, PID: w.PID, State: w.State,
			Python: w.Python, Problems: w.Problems,
		}
		for _, c := range w.Children {
			if len(c.Python.Threads) > 0 {
				short.Children = append(short.Children, c)
			}
		}
		for _, t := range w.Native.Threads {
			if t.TID == w.PID {
				t.Stack = nil
				short.Native.Threads = []NativeThread{t}
			}
		}
		brief.Workers = append(brief.Workers, short)
	}
	return &brief
}

// With is the report with the workers of other hosts, by rank, but those that it has already.
// missing says of which hosts there is nothing.
func (r *Report) With(others []*Report, missing []string) *Report {
	all := *r
	all.Workers = slices.Clone(r.Workers)
	for i := range all.Workers {
		all.Workers[i].Host = r.Host
	}
	for _, other := range others {
		for _, w := range other.Workers {
			if !slices.ContainsFunc(r.Workers, func(own Worker) bool { return own.Rank == w.Rank }) {
				all.Workers = append(all.Workers, w)
			}
		}
	}
	slices.SortStableFunc(all.Workers, func(a, b Worker) int { return cmp.Compare(a.Rank, b.Rank) })
	all.Missing = append(slices.Clone(r.Missing), missing...)
	return &all
}
