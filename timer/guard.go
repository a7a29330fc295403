package timer

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"time"
)

// present says whether the FIFO is where it was made.
func (f *FileServer) present() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fifo.at(f.path)
}

// restore makes another FIFO in place of one that was removed. Without a way to do
// so it waits an interval. It says false when there is nothing more to guard.
func (f *FileServer) restore(ctx context.Context) bool {
	log := func(level slog.Level, msg string, args ...any) {
		f.server.tell(level, msg, append(args, "path", f.path)...)
	}
	if _, err := os.Lstat(f.path); err == nil {
		log(slog.LevelError, "somebody replaced the timer FIFO; timers that run are kept, new ones will not come")
		return false
	}
	made, err := makeFIFO(f.path)
	if errors.Is(err, fs.ErrExist) {
		return true // somebody was faster: look again
	}
	if err != nil {
		log(slog.LevelError, "the timer FIFO was removed and cannot be made again", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(f.server.cfg.MaxInterval):
		}
		return true
	}
	log(slog.LevelWarn, "the timer FIFO was removed; made another")
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next != nil { // the reader did not come to it
		f.next.file.Close()
	} else {
		f.fifo.wake()
	}
	f.fifo, f.next = made, made
	return true
}

// patrol is guard where the system does not tell when a file is removed: it looks at
// every interval.
func (f *FileServer) patrol(ctx context.Context) {
	ticker := time.NewTicker(f.server.cfg.MaxInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if !f.present() && !f.restore(ctx) {
				return
			}
		}
	}
}
