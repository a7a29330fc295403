package timer

import (
	"context"
	"errors"
	"log/slog"
	"sync"
)

// A life is the one call of Run or Serve that a server has.
type life struct {
	mu   sync.Mutex // guards the rest
	used bool
	end  context.CancelFunc
	done chan struct{} // closed at the end of the call; nil before it
}

// run makes the one call, of do. A second one, and one after close, is the error used.
func (l *life) run(ctx context.Context, used string, do func(context.Context) error) error {
	ctx, ended, ok := l.begin(ctx)
	if !ok {
		return errors.New(used)
	}
	defer ended()
	return do(ctx)
}

// begin returns a context that close ends as well as ctx does, and what the call does when it
// returns. It is not ok after close, and the second time.
func (l *life) begin(ctx context.Context) (_ context.Context, ended func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.used {
		return ctx, nil, false
	}
	ctx, end := context.WithCancel(ctx)
	l.used, l.end, l.done = true, end, make(chan struct{})
	return ctx, func() { end(); close(l.done) }, true
}

// close ends the call and waits for it. Where there was none, the caller frees what it would have.
func (l *life) close() (unused bool) {
	l.mu.Lock()
	unused, l.used = !l.used, true
	end, done := l.end, l.done
	l.mu.Unlock()
	if done != nil {
		end()
		<-done
	}
	return unused
}

// start has s run until Close.
func (s *Server) start() {
	ctx, ended, _ := s.call.begin(context.Background())
	s.begin(ctx)
	go func() { defer ended(); s.run(ctx) }()
}

// feed has s fed until l ends.
func (s *Server) feed(over string, l *life, serve func(context.Context) error) {
	ctx, ended, _ := l.begin(context.Background())
	go func() {
		defer ended()
		if err := serve(ctx); err != nil {
			s.tell(slog.LevelError, "the workers' timers are no longer served", "over", over, "error", err)
		}
	}()
}

// unserved notes that a FIFO or a socket, from now on, brings nothing.
func (s *Server) unserved(what any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since.idle[what] = s.cfg.now()
}

// served notes that a FIFO or a socket is served, or not there any more.
func (s *Server) served(what any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.since.idle, what)
}
