package postmortem

import "github.com/muster-run/muster/internal/text"

// A Stream is what one worker has written to its stdout or stderr.
type Stream struct {
	Path   string // of the file
	Stderr bool
	rank   int // as lines are marked with it
}

// A Selection says which streams of an attempt are wanted.
type Selection struct {
	Stdout, Stderr bool
	Ranks          text.RankSet // nil: all
	LocalRanks     bool         // ranks are local ones, as they are where the global ones are not known
}

// Rank is how a worker is called: by its local rank if that is wanted, or all that is known.
func (s *Selection) Rank(w *Worker) int {
	if s.LocalRanks || w.Rank < 0 {
		return w.LocalRank
	}
	return w.Rank
}

// Streams returns the streams of an attempt that are wanted and have files, by local rank.
func (a *Attempt) Streams(s Selection) (all []Stream) {
	for _, w := range a.Workers {
		rank := s.Rank(&w)
		if !s.Ranks.Has(rank) {
			continue
		}
		if w.Stdout != "" && s.Stdout {
			all = append(all, Stream{w.Stdout, false, rank})
		}
		if w.Stderr != "" && s.Stderr {
			all = append(all, Stream{w.Stderr, true, rank})
		}
	}
	return all
}
