package main

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
	"github.com/muster-run/muster/rendezvous/etcd"
	"github.com/muster-run/muster/rendezvous/quorum"
	"github.com/muster-run/muster/rendezvous/static"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

func handler(new func(rendezvous.Spec) (rendezvous.Handler, error), spec rendezvous.Spec, calls ...func(rendezvous.Handler) any) func() any {
	return func() any {
		spec.Logger = quiet
		h, err := new(spec)
		return after(h, err, append(calls, func(h rendezvous.Handler) any { return h.Leave(bg) })...)
	}
}

var single = rendezvous.Spec{RunID: "job", Endpoint: "localhost:0"}

func next(ctx context.Context) func(rendezvous.Handler) any {
	return func(h rendezvous.Handler) any { return two(h.Next(ctx)) }
}

var ofRendezvous = table{
	"c10d: zero Spec":           handler(c10d.New, rendezvous.Spec{}),
	"static: zero Spec":         handler(static.New, rendezvous.Spec{}),
	"etcd: zero Spec":           handler(etcd.New, rendezvous.Spec{}),
	"quorum: zero Spec":         handler(quorum.New, rendezvous.Spec{}),
	"c10d: no such port":        handler(c10d.New, rendezvous.Spec{RunID: "job", Endpoint: "localhost:99999"}),
	"c10d: endpoint of junk":    handler(c10d.New, rendezvous.Spec{RunID: "job", Endpoint: "user:pass@host:1:2"}),
	"c10d: negative nodes":      handler(c10d.New, rendezvous.Spec{RunID: "job", Endpoint: "localhost:0", MinNodes: -3, MaxNodes: -1}, next(bg)),
	"c10d: more than there may": handler(c10d.New, rendezvous.Spec{RunID: "job", Endpoint: "localhost:29444", MinNodes: 5, MaxNodes: 2}, next(done)),
	"c10d: negative workers":    handler(c10d.New, rendezvous.Spec{RunID: "job", Endpoint: "localhost:0", LocalWorldSize: -1}, next(bg)),
	"c10d: negative settings":   handler(c10d.New, rendezvous.Spec{RunID: "job", Endpoint: "localhost:0", Settings: rendezvous.Settings{Join: never, LastCall: -1, Heartbeat: -1, KeepAliveMaxAttempt: -1}}, next(bg)),
	"c10d: cancelled":           handler(c10d.New, single, next(done)),
	"c10d: next twice":          handler(c10d.New, single, next(bg), next(bg)),
	"c10d: next after leave":    handler(c10d.New, single, func(h rendezvous.Handler) any { return h.Leave(bg) }, next(bg)),
	"c10d: shutdown twice":      handler(c10d.New, single, next(bg), func(h rendezvous.Handler) any { return all(h.Shutdown(bg), h.Shutdown(bg)) }, next(bg)),
	"c10d: shutdown cancelled":  handler(c10d.New, single, next(bg), func(h rendezvous.Handler) any { return h.Shutdown(done) }),
	"static: rank -1":           handler(static.New, rendezvous.Spec{RunID: "job", Endpoint: "localhost:29445", NodeRank: -1, MaxNodes: 2}),
	"static: rank 7 of 2":       handler(static.New, rendezvous.Spec{RunID: "job", Endpoint: "localhost:29445", NodeRank: 7, MaxNodes: 2}),
	"quorum: members of junk": func() any {
		return all(two(quorum.Members("")), two(quorum.Members(",,,")), two(quorum.Members("http://a,b:99999")))
	},
	"c10d: odd settings": handler(c10d.New, rendezvous.Spec{RunID: "job", Endpoint: "localhost:0", Settings: rendezvous.Settings{
		DataDir: "a\x00b", Unknown: map[string]string{"": ""}, Access: rendezvous.Access{Bind: "junk", TokenFile: "/no/where"},
	}}, next(bg)),
	"zero Basic": func() any {
		var b rendezvous.Basic
		b.End(rendezvous.Outcome{})
		b.OnSpare(nil)
		b.Handle("", nil)
		_, asked := b.Ask(bg, -1, "", nil, -1)
		return all(asked, two(b.Call(bg, -1)), two(b.CallToRead(done, 1<<40)), two(b.Calls()), b.CanChange())
	},
	"settings of junk": func() any {
		return all(two(rendezvous.ParseSettings("", nil)), two(rendezvous.ParseSettings("none", map[string]string{"join_timeout": "-1", "read_timeout": "x", "": ""})))
	},
	"zero errors": func() any {
		return all((&rendezvous.TimeoutError{}).Error(), rendezvous.Waiting{Joined: -1}.String(), rendezvous.ChangeKind(200).String())
	},
	"errors of nil": func() any {
		return all((&rendezvous.ConnectionError{}).Error(), (&rendezvous.EndedError{}).Error(), (&rendezvous.CallError{}).Error())
	},
}

var ofStore = table{
	"memory, cancelled": func() any {
		s := store.NewMemory()
		return all(s.Set(done, "", nil), two(s.Get(done, "k")), s.Wait(done, "k"))
	},
	"memory, no keys": func() any {
		s := store.NewMemory()
		return all(s.Wait(bg), two(s.Check(bg)), two(s.MultiGet(bg, nil)), s.MultiSet(bg, nil, nil))
	},
	"memory, unequal": func() any { return store.NewMemory().MultiSet(bg, []string{"a"}, nil) },
	"memory, no number": func() any {
		s := store.NewMemory()
		return all(s.Set(bg, "k", []byte("x")), two(s.Add(bg, "k", 1)), s.Barrier(bg, "k", 1))
	},
	"memory, barrier of none": func() any {
		s := store.NewMemory()
		return all(s.Barrier(bg, "b", 0), s.Barrier(bg, "c", -1), s.Barrier(bg, "", 1))
	},
	"memory, empty queue": func() any {
		s := store.NewMemory()
		return all(two(s.QueuePop(bg, "", false)), two(s.QueuePop(done, "q", true)), two(s.QueueLen(bg, huge)))
	},
	"prefix of nothing": func() any {
		s := store.Prefix("", store.NewMemory())
		return all(s.Set(bg, "", nil), two(s.ListKeys(bg)))
	},
	"barrier of none": func() any {
		return all(store.Barrier(bg, store.NewMemory(), "", 0), store.Barrier(done, store.NewMemory(), "b", 1<<62))
	},
}

func served(cfg tcpstore.ServerConfig, calls ...func(*tcpstore.Server) any) func() any {
	return func() any {
		if cfg.Addr == "" {
			cfg.Addr = "127.0.0.1:0"
		}
		cfg.Logger = quiet
		s, err := tcpstore.Listen(cfg)
		return after(s, err, append(calls, func(s *tcpstore.Server) any { return s.Close() })...)
	}
}

func dialed(change func(*tcpstore.ClientConfig), calls ...func(*tcpstore.Client) any) func() any {
	return served(tcpstore.ServerConfig{}, func(s *tcpstore.Server) any {
		cfg := tcpstore.ClientConfig{Addr: s.Addr().String(), Timeout: 300 * time.Millisecond, Logger: quiet}
		change(&cfg)
		c, err := tcpstore.Dial(bg, cfg)
		return after(c, err, append(calls, func(c *tcpstore.Client) any { return c.Close() })...)
	})
}

func plain(*tcpstore.ClientConfig) {}

var ofTCPStore = table{
	"server: zero Config": func() any {
		s, err := tcpstore.Listen(tcpstore.ServerConfig{})
		return after(s, err, func(s *tcpstore.Server) any { return s.Close() })
	},
	"server: no such port":   served(tcpstore.ServerConfig{Addr: "127.0.0.1:99999"}),
	"server: zero network":   served(tcpstore.ServerConfig{Allow: []netip.Prefix{{}}}),
	"server: limit of none":  served(tcpstore.ServerConfig{Limit: &tcpstore.Limit{Max: -1}}),
	"server: keepalive < 0":  served(tcpstore.ServerConfig{KeepAlive: never}),
	"server: keepalive huge": served(tcpstore.ServerConfig{KeepAlive: ever}),
	"server: close twice":    served(tcpstore.ServerConfig{}, func(s *tcpstore.Server) any { return all(s.Close(), s.Serve(bg), s.Port()) }),
	"server: after close": served(tcpstore.ServerConfig{}, func(s *tcpstore.Server) any {
		return all(s.Close(), s.Store().Set(bg, "k", nil), two(s.Store().Get(done, "k")))
	}),
	"server: reset, close": served(tcpstore.ServerConfig{}, func(s *tcpstore.Server) any { s.Reset(); err := s.Close(); s.Reset(); return err }),
	"server: wait cancelled": served(tcpstore.ServerConfig{}, func(s *tcpstore.Server) any {
		return all(s.WaitForWorkers(done, 3), s.WaitForWorkers(bg, -1), s.WaitForWorkers(bg, 0))
	}),
	"server: no session":       served(tcpstore.ServerConfig{}, func(s *tcpstore.Server) any { return two(s.ServeSession("none")) }),
	"server: serve cancelled":  served(tcpstore.ServerConfig{}, func(s *tcpstore.Server) any { return s.Serve(done) }),
	"server: unmirror nothing": served(tcpstore.ServerConfig{}, func(s *tcpstore.Server) any { s.Unmirror(""); return nil }),
	"dial: zero Config": func() any {
		ctx, cancel := context.WithTimeout(bg, 300*time.Millisecond)
		defer cancel()
		return two(tcpstore.Dial(ctx, tcpstore.ClientConfig{Logger: quiet}))
	},
	"dial: cancelled": func() any { return two(tcpstore.Dial(done, tcpstore.ClientConfig{Addr: "127.0.0.1:1", Logger: quiet})) },
	"dial: no such port": func() any {
		return two(tcpstore.Dial(bg, tcpstore.ClientConfig{Addr: "127.0.0.1:99999", Timeout: time.Second, Logger: quiet}))
	},
	"dial: timeout < 0": dialed(func(c *tcpstore.ClientConfig) { c.Timeout = never }),
	"dial: world -1":    dialed(func(c *tcpstore.ClientConfig) { c.WorldSize, c.MaxValue, c.KeepAlive = -1, -1, never }),
	"dial: session of no one": served(tcpstore.ServerConfig{}, func(s *tcpstore.Server) any {
		return two(tcpstore.DialSession(bg, tcpstore.ClientConfig{Addr: s.Addr().String(), Timeout: time.Second, Logger: quiet}, ""))
	}),
	"client: close twice":    dialed(plain, func(c *tcpstore.Client) any { return all(c.Close(), c.Set(bg, "k", nil), two(c.Get(bg, "k"))) }),
	"client: get of nothing": dialed(plain, func(c *tcpstore.Client) any { return two(c.Get(bg, "none")) }),
	"client: cancelled":      dialed(plain, func(c *tcpstore.Client) any { return all(two(c.Get(done, "k")), c.Set(done, "k", nil), c.Wait(done)) }),
	"client: huge key": dialed(plain, func(c *tcpstore.Client) any {
		return all(c.Set(bg, huge, nil), two(c.Get(bg, huge)), two(c.Add(bg, huge, 1)))
	}),
	"client: nothing": dialed(plain, func(c *tcpstore.Client) any {
		return all(c.Set(bg, "", nil), two(c.MultiGet(bg, nil)), c.MultiSet(bg, []string{"a"}, nil), c.Wait(bg), two(c.Check(bg)))
	}),
	"client: no number": dialed(plain, func(c *tcpstore.Client) any {
		return all(c.Set(bg, "k", []byte("x")), two(c.Add(bg, "k", 1)), c.Set(bg, "k", nil))
	}),
	"client: barrier of none": dialed(plain, func(c *tcpstore.Client) any { return all(c.Barrier(bg, "b", 0), c.Barrier(bg, "c", -1)) }),
	"client: value too long":  dialed(func(c *tcpstore.ClientConfig) { c.MaxValue = 10 }, func(c *tcpstore.Client) any { return all(c.Set(bg, "k", []byte(huge)), two(c.Get(bg, "k"))) }),
	"server: a guard of nothing": served(tcpstore.ServerConfig{Guard: nothing{}}, func(s *tcpstore.Server) any {
		return two(tcpstore.Dial(bg, tcpstore.ClientConfig{Addr: s.Addr().String(), Timeout: 300 * time.Millisecond, Logger: quiet}))
	}),
	"dial: a guard of nothing": dialed(func(c *tcpstore.ClientConfig) { c.Guard = nothing{} }),
	"server: follow nothing":   served(tcpstore.ServerConfig{Relay: true}, func(s *tcpstore.Server) any { return s.Follow(bg, noConn) }),
	"server: no relay follows": served(tcpstore.ServerConfig{}, func(s *tcpstore.Server) any { return s.Follow(done, noConn) }),
	"shared: after the end": func() any {
		s, a := tcpstore.NewShared(), (net.Conn)(nil)
		s.End()
		s.End()
		a, b := net.Pipe()
		b.Close()
		return s.Serve(a)
	},
}

// What returns neither a connection nor an error.
type nothing struct{}

func (nothing) Accept(net.Conn) (net.Conn, error)                   { return nil, nil }
func (nothing) Connect(context.Context, net.Conn) (net.Conn, error) { return nil, nil }

func noConn(context.Context) (net.Conn, error) { return nil, nil }

func callNobody(context.Context, int) (net.Conn, error) { return nil, nil }

type source struct{}

func (source) Alive() time.Time                      { return time.Time{} }
func (source) GPUs(time.Duration) []agent.GPU        { return nil }
func (source) State(context.Context) *jobstate.State { return nil }
func (source) WriteMetrics(io.Writer) error          { return errors.New("no metrics") }

func healthy(change func(*health.Config), calls ...func(*health.Server) any) func() any {
	return func() any {
		cfg := health.Config{Addr: "127.0.0.1:0", Source: source{}, Logger: quiet}
		change(&cfg)
		s, err := health.Listen(cfg)
		return after(s, err, append(calls, func(s *health.Server) any { return s.Close() })...)
	}
}

// An alone source has a host, and another that nobody can call.
type alone struct{ source }

func (alone) State(context.Context) *jobstate.State {
	return &jobstate.State{Hosts: []jobstate.Host{{}, {GroupRank: 1}}}
}

// A helpless control does nothing.
type helpless struct{}

func (helpless) Stop(string, bool) func()                           { return func() {} }
func (helpless) Restart(string) error                               { return nil }
func (helpless) Signal(syscall.Signal, int) ([]agent.Worker, error) { return nil, nil }
func (helpless) Autopsy(context.Context, string) ([]byte, error)    { return nil, nil }

// asks sends requests to a server.
func asks(paths ...string) func(*health.Server) any {
	return func(s *health.Server) any {
		var statuses []any
		for _, path := range paths {
			w := httptest.NewRecorder()
			method, path, _ := strings.Cut(path, " ")
			s.Handler().ServeHTTP(w, httptest.NewRequest(method, "http://localhost"+path, nil))
			statuses = append(statuses, w.Code)
		}
		return statuses
	}
}

var ofHealth = table{
	"calls of nobody": healthy(func(c *health.Config) { c.Source, c.Control, c.Call = alone{}, helpless{}, callNobody },
		asks("GET /", "GET /v1/state", "GET /v1/logs?follow=1", "POST /v1/stop", "POST /v1/restart", "POST /v1/signal?signal=15", "POST /v1/autopsy")),
	"requests of junk": healthy(func(c *health.Config) { c.Source = alone{} },
		asks("GET /v1/state?scope=x", "GET /v1/logs?rank=-1", "GET /v1/logs?follow=9&lines=x", "POST /v1/stop", "PUT /", "GET /none")),
	"follow nobody": func() any {
		return health.FollowHost(bg, callNobody, -1, health.LogQuery{Once: true, Lines: -1}, func(*health.LogFrame) error { return nil })
	},
	"hear of junk": func() any {
		return all(jobstate.Hear(-1, nil, nil), jobstate.Hear(0, []byte("{}"), nil), jobstate.Hear(7, nil, io.EOF))
	},
	"zero State": func() any {
		var s jobstate.State
		others := jobstate.Others{Heard: map[int]jobstate.Heard{-1: {}, 1: {State: &s, Problem: io.EOF}}}
		return all(s.Shown(nil, jobstate.Others{}), s.Shown([]agent.GPU{{}}, others), s.Worker(-1), s.Job.Runs(), (&jobstate.Exit{}).String())
	},
	"odd Heartbeat": func() any {
		return all((&jobstate.Heartbeat{StepsPerSecond: math.NaN()}).Pace(), (&jobstate.Heartbeat{StepsPerSecond: math.Inf(1)}).Pace(), (&jobstate.Heartbeat{Step: -1 << 63}).Pace())
	},
	"zero Config":        func() any { return two(health.Listen(health.Config{})) },
	"no such port":       healthy(func(c *health.Config) { c.Addr = "127.0.0.1:99999" }),
	"address of junk":    healthy(func(c *health.Config) { c.Addr = "a:b:c" }),
	"negative Config":    healthy(func(c *health.Config) { c.Timeout, c.Refresh, c.MaxConns = -1, -1, -1 }),
	"huge times":         healthy(func(c *health.Config) { c.Timeout, c.Refresh, c.MaxConns = ever, ever, 1<<62 }),
	"serve cancelled":    healthy(func(*health.Config) {}, func(s *health.Server) any { return s.Serve(done) }),
	"serve twice":        healthy(func(*health.Config) {}, func(s *health.Server) any { return all(s.Serve(done), s.Serve(done)) }),
	"close twice, serve": healthy(func(*health.Config) {}, func(s *health.Server) any { return all(s.Close(), s.Close(), s.Serve(bg), s.URL(""), s.Addr()) }),
	"odd names":          healthy(func(c *health.Config) { c.Names = []string{"", "a\x00b", huge} }),
	"address parts": func() any {
		n, a, err := health.ParseAddr("")
		_, _, junk := health.ParseAddr("99999999")
		return all(n, a, err, junk)
	},
	"zero Observer": func() any {
		var o jobstate.Observer
		o.Observe(agent.Event{})
		o.Waiting(rendezvous.Waiting{})
		return all(o.State(done), o.Alive(), o.GPUs(never))
	},
	"state of junk": func() any {
		return all(two(jobstate.Parse(nil)), two(jobstate.Parse([]byte("null"))), two(jobstate.Parse([]byte(`{"version": 99}`))))
	},
}

func launched(change func(*launch.Config)) func() any {
	return func() any {
		cfg := launch.Default()
		cfg.Workers.Entrypoint, cfg.Logger, cfg.Logs.Dir = "/bin/true", quiet, temp("logs")
		change(&cfg)
		return two(launch.Run(bg, cfg))
	}
}

var ofLaunch = table{
	"zero Config": func() any { return two(launch.Run(bg, launch.Config{Logger: quiet})) },
	"cancelled": func() any {
		cfg := launch.Default()
		cfg.Workers.Entrypoint, cfg.Logger = "/bin/true", quiet
		return two(launch.Run(done, cfg))
	},
	"no program":           launched(func(c *launch.Config) { c.Workers.Entrypoint = "" }),
	"missing program":      launched(func(c *launch.Config) { c.Workers.Entrypoint = "/no/where" }),
	"program and function": launched(func(c *launch.Config) { c.Workers.Func = "echo" }),
	"unknown function":     launched(func(c *launch.Config) { c.Workers.Entrypoint, c.Workers.Func = "", "none" }),
	"no workers":           launched(func(c *launch.Config) { c.NprocPerNode = 0 }),
	"workers -1":           launched(func(c *launch.Config) { c.NprocPerNode = -1 }),
	"workers 1<<40":        launched(func(c *launch.Config) { c.NprocPerNode = 1 << 40 }),
	"nodes -1":             launched(func(c *launch.Config) { c.MinNodes, c.MaxNodes = -1, -1 }),
	"nodes 5 to 2":         launched(func(c *launch.Config) { c.MinNodes, c.MaxNodes = 5, 2 }),
	"negative times": launched(func(c *launch.Config) {
		c.MaxRestarts, c.HangTimeout, c.LiveTimeout, c.ExitBarrierTimeout, c.HelperTimeout = -1, -1, -1, -1, -5
	}),
	"huge times": launched(func(c *launch.Config) {
		c.MaxRestarts, c.HangTimeout, c.ExitBarrierTimeout, c.ShutdownTimeout = 1<<62, ever, ever, ever
	}),
	"no such backend":  launched(func(c *launch.Config) { c.Rendezvous.Backend = "none" }),
	"no such endpoint": launched(func(c *launch.Config) { c.Rendezvous.Backend, c.Rendezvous.Endpoint = "c10d", "localhost:99999" }),
	"signals 9, 99": launched(func(c *launch.Config) {
		c.SignalsToHandle, c.PreemptionSignals = []syscall.Signal{9, 99}, []syscall.Signal{-1}
	}),
	"signals of junk": launched(func(c *launch.Config) { c.SignalsText = "SIGNONE,," }),
	"nil writers":     launched(func(c *launch.Config) { c.Stdout, c.Stderr = (*os.File)(nil), (*os.File)(nil) }),
	"start of nothing": launched(func(c *launch.Config) {
		c.Workers.Start = func(*process.Supervisor, process.Config) (agent.Group, error) { return nil, nil }
	}),
	"start of a nil group": launched(func(c *launch.Config) {
		c.Workers.Start = func(*process.Supervisor, process.Config) (agent.Group, error) { return (*process.Group)(nil), nil }
	}),
	"a nil observer": launched(func(c *launch.Config) { c.Records.Observers = []func(agent.Event){nil} }),
	"resolve twice": func() any {
		cfg, err := launch.Resolve(launch.Default())
		_, again := launch.Resolve(cfg)
		return all(err, again)
	},
	"find no backend": func() any { return two(launch.FindBackend("")) },
}

func agents(change func(*agent.Config), calls ...func(*agent.Agent) any) func() any {
	return func() any {
		return supervisor(func(s *process.Supervisor) any {
			r, err := logs.New(logs.Config{Dir: temp("logs"), Logger: quiet})
			if err != nil {
				return err
			}
			defer r.Close(false)
			meet, err := c10d.New(rendezvous.Spec{RunID: "job", Endpoint: "localhost:0", Logger: quiet})
			if err != nil {
				return err
			}
			cfg := agent.Config{Spec: agent.Spec{LocalWorldSize: 1, Entrypoint: "/bin/true"}, Rendezvous: meet, Supervisor: s, Logs: r, Logger: quiet}
			change(&cfg)
			a, err := agent.New(cfg)
			return after(a, err, append(calls, func(a *agent.Agent) any { return two(a.Run(bg)) })...)
		})
	}
}

var ofAgent = table{
	"zero Config":      func() any { return two(agent.New(agent.Config{})) },
	"no workers":       agents(func(c *agent.Config) { c.Spec.LocalWorldSize = 0 }),
	"workers -1":       agents(func(c *agent.Config) { c.Spec.LocalWorldSize = -1 }),
	"missing program":  agents(func(c *agent.Config) { c.Spec.Entrypoint = "/no/where" }),
	"unknown function": agents(func(c *agent.Config) { c.Spec.Entrypoint, c.Spec.Func = "", "none" }),
	"negative times": agents(func(c *agent.Config) {
		c.HangTimeout, c.PeerTimeout, c.LiveTimeout, c.ExitBarrierTimeout, c.MaxRestarts = -1, -1, -1, -1, -1
	}),
	"run cancelled": agents(func(*agent.Config) {}, func(a *agent.Agent) any { return two(a.Run(done)) }),
	"before it runs": agents(func(*agent.Config) {}, func(a *agent.Agent) any {
		sent, err := a.Signal(99, -1)
		return all(a.Workers(), a.Hosts(), a.Alive(), a.Restart(""), sent, err)
	}),
	"after it has run": agents(func(*agent.Config) {}, func(a *agent.Agent) any { return two(a.Run(bg)) }, func(a *agent.Agent) any {
		sent, err := a.Signal(15, 0)
		return all(a.Workers(), a.Restart(""), sent, err, a.GPUs(never))
	}),
	"start of nothing":  agents(func(c *agent.Config) { c.Start = func(process.Config) (agent.Group, error) { return nil, nil } }),
	"start of an error": agents(func(c *agent.Config) { c.Start = func(process.Config) (agent.Group, error) { return nil, io.EOF } }),
	"start of a nil group": agents(func(c *agent.Config) {
		c.Start = func(process.Config) (agent.Group, error) { return (*process.Group)(nil), nil }
	}),
	"prepared for ever": agents(func(c *agent.Config) {
		c.Prepare = func(func() process.Config) <-chan struct{} { return make(chan struct{}) }
	}),
	"asked about nothing": agents(func(*agent.Config) {}, func(a *agent.Agent) any {
		courses, base := a.Courses(done)
		stats, malformed := a.TimerStats()
		return all(courses, base, two(a.Autopsy(done, huge)), stats, malformed, a.Answers() == nil, a.FollowLogs(done, logs.FollowConfig{}, -1, nil, nil))
	}),
	"a nil observer": agents(func(c *agent.Config) { c.Observers = []func(agent.Event){nil} }),
	"nil result":     func() any { var r *agent.Result; return all(r.IsFailed(), r.Err()) },
	"zero Result":    func() any { var r agent.Result; return all(r.IsFailed(), r.Err()) },
}
