package doctor

import (
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// exhausted is a listener of a process without descriptors.
type exhausted struct {
	net.Listener
	tried  atomic.Int64
	closed atomic.Bool
}

func (l *exhausted) Accept() (net.Conn, error) {
	if l.closed.Load() {
		return nil, net.ErrClosed
	}
	l.tried.Add(1)
	return nil, syscall.EMFILE
}

func TestAcceptWithoutDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &exhausted{}
		w := &listener{Listener: l}
		w.all.Go(func() { w.accept(t.Context()) })
		time.Sleep(time.Second + time.Millisecond)
		l.closed.Store(true)
		w.all.Wait()
		if n := l.tried.Load(); n != 11 {
			t.Errorf("tried %d times in a second", n)
		}
	})
}
