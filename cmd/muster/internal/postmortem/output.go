package postmortem

// A Stream is what one worker has written to its stdout or stderr.
type Stream struct {
	Worker Worker
	Stderr bool
	Path   string // of the file
}

// Streams returns the streams of an attempt that have files, by local rank. Those
// of workers that want refuses are left out.
func (a *Attempt) Streams(stdout, stderr bool, want func(Worker) bool) []Stream {
	var all []Stream
	for _, w := range a.Workers {
		if !want(w) {
			continue
		}
		if w.Stdout != "" && stdout {
			all = append(all, Stream{Worker: w, Path: w.Stdout})
		}
		if w.Stderr != "" && stderr {
			all = append(all, Stream{Worker: w, Stderr: true, Path: w.Stderr})
		}
	}
	return all
}

// rank is how the stream's worker is called: by its local rank if that is wanted, or all that is known.
func (s *Stream) rank(local bool) int {
	if local || s.Worker.Rank < 0 {
		return s.Worker.LocalRank
	}
	return s.Worker.Rank
}
