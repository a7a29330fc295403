package peers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/muster-run/muster/internal/files/safeopen"
)

// The record of a failure has the cause and the traceback. What else the worker wrote to its
// stderr at last is on its host only, which may be lost with it: power, or a person who takes the
// machine away. So the agent of the record sets it at lastWordsKey, and two other agents keep it
// beside their workers' logs.

const (
	// lastWordsTime is how long an agent that keeps them waits for them.
	lastWordsTime = time.Second
	// keepers is how many agents keep them: the first ones that have a directory.
	keepers = 2
)

// SayLastWords sets the end of stderr, tail, of the worker in this node's record.
func (r *Round) SayLastWords(ctx context.Context, rec *Record, tail func() []byte) {
	if rec.Rank < 0 || rec.Signal != 0 {
		return
	}
	if err := r.Store.Set(ctx, lastWordsKey, tail()); err != nil {
		r.Log.Warn("cannot send the end of the failed worker's stderr to other hosts", "error", err)
	}
}

// KeepLastWords writes what another host's failed worker wrote to its stderr at last into the
// attempt's directory, if it has one and this node is one of those that do. An agent of torchrun is not, and neither
// is one that keeps no files.
func (r *Round) KeepLastWords(ctx context.Context, rec *Record, dir string) {
	if rec.Rank < 0 || rec.Signal != 0 || dir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWordsTime)
	defer cancel()
	s := r.Store
	n, err := s.Add(ctx, keepersKey, 1)
	if err == nil && n > keepers {
		return
	}
	var text []byte
	if err == nil {
		text, err = s.Get(ctx, lastWordsKey)
	}
	if err != nil {
		r.Log.Warn("cannot keep the end of the failed worker's stderr", "error", err)
		return
	}
	if len(text) == 0 || len(text) > maxLastWords {
		return
	}
	path := filepath.Join(dir, fmt.Sprintf("stderr_of_rank_%d.log", rec.Rank))
	f, err := safeopen.Create(path)
	if err == nil {
		_, err = f.Write(text)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}
	if err != nil {
		os.Remove(path)
		r.Log.Warn("cannot keep the end of the failed worker's stderr", "error", err)
		return
	}
	r.Log.Info("the end of the failed worker's stderr is kept here, too", "host", rec.Host, "rank", rec.Rank, "file", path)
}

// maxLastWords bounds what another agent says, in bytes.
const maxLastWords = 64 << 10
