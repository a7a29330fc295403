//go:build !linux

package timer

import (
	"context"
	"time"
)

func growPipe(int) {}

func nap(d time.Duration) { time.Sleep(d) }

// guard puts the FIFO back when it is removed, until ctx is done.
func (f *FileServer) guard(ctx context.Context) { f.patrol(ctx) }
