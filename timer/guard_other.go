//go:build !linux

package timer

import (
	"context"
	"time"
)

func growPipe(int) {}

func nap(d time.Duration) { time.Sleep(d) }

// guard puts the FIFO back when it is removed, until ctx is done. It looks at every
// interval.
func (f *FileServer) guard(ctx context.Context) {
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
