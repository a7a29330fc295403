package tcpstore

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-run/muster/store/internal/kv"
)

// A store that cannot be reached for a moment, as at the end of a job, is not worth a word; one that cannot
// for longer is.
func TestKeepWarns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		s := &Server{log: slog.New(slog.NewTextHandler(&said, nil)), relay: newRelay(), m: kv.New(), done: make(chan struct{})}
		ctx, end := context.WithCancel(t.Context())
		ended, first, links := make(chan struct{}), make(chan error, 1), make(chan net.Conn, 1)
		var down, silent atomic.Bool
		go func() {
			defer close(ended)
			s.keep(ctx, func(context.Context) (net.Conn, error) {
				if down.Load() {
					if silent.Load() {
						time.Sleep(time.Minute)
					}
					return nil, errors.New("nobody is there")
				}
				near, far := net.Pipe()
				links <- far
				return near, nil
			}, first)
		}()
		lose := func(d time.Duration) {
			link := <-links
			down.Store(true)
			link.Close()
			time.Sleep(d)
			down.Store(false)
			time.Sleep(2 * redialMost)
			synctest.Wait()
		}
		lose(lostTime / 2)
		if said.Len() > 0 {
			t.Errorf("after a moment: %s", said.String())
		}
		lose(2 * lostTime)
		if n := strings.Count(said.String(), "cannot be reached; trying again"); n == 0 || n > 2 {
			t.Errorf("%d warnings, want one or two: %s", n, said.String())
		}
		said.Reset()
		silent.Store(true)
		link := <-links
		down.Store(true)
		link.Close()
		time.Sleep(2 * lostTime)
		synctest.Wait()
		if n := strings.Count(said.String(), "the server closed it"); n != 1 {
			t.Errorf("while a dial is under way: %d warnings, want one: %s", n, said.String())
		}
		end()
		<-ended
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}
