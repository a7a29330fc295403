package main

import (
	"context"
	"encoding/json"
	"os"
	"syscall"
	"time"

	"github.com/muster-run/muster/timer"
)

var still = timer.Config{Logger: quiet}

func server(cfg timer.Config, calls ...func(*timer.Server) any) any {
	s, err := timer.NewServer(cfg)
	return after(s, err, append(calls, func(s *timer.Server) any { return s.Close() })...)
}

func registered(requests ...timer.Request) func() any {
	return func() any {
		return server(still, func(s *timer.Server) any { return s.Register(requests) })
	}
}

func run(ctx context.Context) func(*timer.Server) any {
	return func(s *timer.Server) any { return s.Run(ctx) }
}

func closing(s *timer.Server) any { return s.Close() }

func fifo(calls ...func(*timer.FileServer) any) any {
	f, err := timer.StartFIFO(still, temp("fifo"))
	return after(f, err, append(calls, func(f *timer.FileServer) any { return f.Close() })...)
}

func socket(calls ...func(*timer.SocketServer) any) any {
	s, err := timer.StartSocket(still, "")
	return after(s, err, append(calls, func(s *timer.SocketServer) any { return s.Close() })...)
}

func local(q timer.RequestQueue, calls ...func(*timer.LocalServer) any) any {
	s, err := timer.StartLocal(still, q)
	return after(s, err, append(calls, func(s *timer.LocalServer) any { return s.Close() })...)
}

// A lazy queue does not wait, and brings what nobody asked for.
type lazy struct{}

func (lazy) Size() int                                { return -1 }
func (lazy) Get(context.Context, int) []timer.Request { return nil }

var ofTimer = table{
	"zero Config":           func() any { return server(timer.Config{}) },
	"negative Config":       func() any { return server(timer.Config{MaxInterval: never, MaxTimers: -1}) },
	"huge run ID":           func() any { return server(timer.Config{RunID: huge, Logger: quiet}) },
	"register nothing":      registered(),
	"register zero":         registered(timer.Request{}),
	"register pid -1":       registered(timer.Request{PID: -1, ExpirationTime: time.Now()}),
	"register pid 1<<62":    registered(timer.Request{PID: 1 << 62, ExpirationTime: time.Now()}),
	"register signal 1<<30": registered(timer.Request{PID: os.Getpid(), ExpirationTime: time.Now(), Signal: 1 << 30}),
	"register signal -5":    registered(timer.Request{PID: os.Getpid(), ExpirationTime: time.Now(), Signal: -5}),
	"register a huge scope": registered(timer.Request{PID: os.Getpid(), ScopeID: huge, ExpirationTime: time.Now().Add(ever)}),
	"register year 292e9":   registered(timer.Request{PID: os.Getpid(), ExpirationTime: time.Unix(1<<62, 0)}),
	"register year -292e9":  registered(timer.Request{PID: os.Getpid(), ExpirationTime: time.Unix(-1<<62, 0)}),
	"release what is not":   registered(timer.Request{PID: os.Getpid(), ScopeID: "s"}),
	"register after close": func() any {
		return server(still, closing, func(s *timer.Server) any {
			return s.Register([]timer.Request{{PID: os.Getpid(), ExpirationTime: time.Now()}})
		})
	},
	"run cancelled":      func() any { return server(still, run(done)) },
	"run twice":          func() any { return server(still, run(done), run(bg)) },
	"run after close":    func() any { return server(still, closing, run(bg)) },
	"close twice":        func() any { return server(still, closing, closing) },
	"settle after close": func() any { return server(still, closing, func(s *timer.Server) any { s.Settle(); return s.Stats() }) },
	"reset nil, after close": func() any {
		return server(still, closing, func(s *timer.Server) any { s.Reset(nil); return s.Progress() })
	},
	"clear nothing, odd": func() any {
		return server(still, func(s *timer.Server) any { s.Clear(); s.Clear(-1, 0, 1<<62); return nil })
	},
	"expired at odd times": func() any {
		return server(still, func(s *timer.Server) any { return all(s.Expired(time.Time{}), s.Expired(time.Unix(1<<62, 0))) })
	},
	"kill of no expiry": func() any { return (&timer.Expiry{}).Kill() },
	"request of nil": func() any {
		var r timer.Request
		return all(r.UnmarshalJSON(nil), json.Unmarshal([]byte("null"), &r), r.String())
	},
	"request of junk":      func() any { var r timer.Request; return r.UnmarshalJSON([]byte(`{"pid": 1e999, "scope_id": [[`)) },
	"FileClient zero":      func() any { c := timer.FileClient{}; return all(c.Acquire("s", time.Now()), c.Release("s")) },
	"FileClient directory": func() any { return (&timer.FileClient{Path: os.TempDir()}).Acquire("s", time.Now()) },
	"FileClient no time":   func() any { return (&timer.FileClient{Path: temp("fifo")}).Acquire("s", time.Time{}) },
	"FileClient signal 200": func() any {
		return fifo(func(f *timer.FileServer) any {
			return (&timer.FileClient{Path: f.Path(), Signal: 200}).Acquire("s", time.Now())
		})
	},
	"FileClient huge scope": func() any {
		return fifo(func(f *timer.FileServer) any { return (&timer.FileClient{Path: f.Path()}).Release(huge) })
	},
	"FileClient zero byte": func() any { return (&timer.FileClient{Path: "a\x00b"}).Release("s") },
	"FIFO without a path":  func() any { return two(timer.StartFIFO(still, "")) },
	"FIFO in no directory": func() any { return two(timer.StartFIFO(still, temp("none")+"/fifo")) },
	"FIFO at a directory":  func() any { return two(timer.StartFIFO(still, os.TempDir())) },
	"FIFO of no server":    func() any { return two(timer.ListenFIFO(nil, temp("fifo"))) },
	"FIFO twice":           func() any { return fifo(func(*timer.FileServer) any { return fifo() }) },
	"FIFO close, serve": func() any {
		return fifo(func(f *timer.FileServer) any { return all(f.Close(), f.Serve(bg), f.Run(bg), f.Close()) })
	},
	"socket of no server":   func() any { return two(timer.ListenSocket(nil, "")) },
	"socket at a directory": func() any { return two(timer.StartSocket(still, os.TempDir())) },
	"socket of a long name": func() any { return two(timer.StartSocket(still, temp(huge))) },
	"socket close, serve": func() any {
		return socket(func(s *timer.SocketServer) any { return all(s.Close(), s.Serve(bg), s.Run(bg), s.Close()) })
	},
	"SocketClient zero": func() any {
		c := timer.SocketClient{}
		return all(c.Acquire("s", time.Now()), c.Heartbeat(-1), c.Close(), c.Close())
	},
	"SocketClient odd": func() any {
		return socket(func(s *timer.SocketServer) any {
			c := timer.SocketClient{Path: s.Path(), PID: -1, Signal: 99, Timeout: never}
			return all(c.Acquire(huge, time.Now()), c.Release(huge), c.Heartbeat(-1<<63), c.Close(), c.Release("s"))
		})
	},
	"LocalClient zero": func() any { c := timer.LocalClient{}; return all(c.Acquire("s", time.Now()), c.Release("s")) },
	"LocalClient odd": func() any {
		c := timer.LocalClient{Queue: &timer.LocalQueue{}, PID: -1, Signal: 99}
		return all(c.Acquire("s", time.Time{}), c.Release("s"))
	},
	"LocalClient nil queue": func() any {
		c := timer.LocalClient{Queue: (*timer.LocalQueue)(nil)}
		return all(c.Acquire("s", time.Now().Add(time.Hour)), c.Release("s"))
	},
	"LocalQueue odd counts": func() any {
		var q timer.LocalQueue
		return all(q.Put(), q.Get(bg, -1), q.Get(bg, 0), q.Get(done, 1<<62), q.Size())
	},
	"LocalQueue full": func() any {
		var q timer.LocalQueue
		return all(q.Put(make([]timer.Request, 1<<16)...), q.Put(timer.Request{}))
	},
	"local without a queue":  func() any { return local(nil) },
	"local with a nil queue": func() any { return local((*timer.LocalQueue)(nil)) },
	"local with a lazy one":  func() any { return local(lazy{}) },
	"local closed twice": func() any {
		return local(&timer.LocalQueue{}, func(s *timer.LocalServer) any { return all(s.Close(), s.Run(bg), s.Env()) })
	},
	"expires without client": func() any { return two(timer.Expires(nil, time.Minute, "")) },
	"expires negative, huge": func() any {
		c := &timer.LocalClient{Queue: &timer.LocalQueue{}}
		release, err := timer.Expires(c, never, huge)
		_, huge := timer.Expires(c, ever, "")
		return all(err, release(), release(), huge)
	},
	"FromEnv of nowhere": func() any {
		os.Setenv(timer.EnvSocket, "/no/where")
		c := timer.FromEnv()
		return all(c.Acquire("s", time.Now().Add(time.Hour)), c.Release("s"), syscall.Signal(0))
	},
}
