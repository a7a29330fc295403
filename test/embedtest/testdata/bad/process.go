package main

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/process/warm"
)

type envs = map[int]map[string]string

func supervisor(calls ...func(*process.Supervisor) any) any {
	s, err := process.NewSupervisor(process.SupervisorConfig{Logger: quiet, NoCgroup: true})
	return after(s, err, append(calls, func(s *process.Supervisor) any { return s.Close() })...)
}

// started is what comes of starting cfg, and of its end.
func started(cfg process.Config, calls ...func(*process.Group) any) func() any {
	return func() any {
		return supervisor(func(s *process.Supervisor) any {
			g, err := s.Start(cfg)
			return after(g, err, append(calls, func(g *process.Group) any { return two(g.Wait(bg)) })...)
		})
	}
}

func program(args ...string) process.Config {
	return process.Config{Entrypoint: "/bin/sh", Args: map[int][]string{0: append([]string{"-c"}, args...)}, Envs: envs{0: nil}, Grace: time.Second}
}

// odd is program with a change.
func odd(change func(*process.Config)) process.Config {
	cfg := program("exit 0")
	change(&cfg)
	return cfg
}

type nilSinks struct{}

func (nilSinks) Sink(int) logs.Sink { return logs.Sink{} }
func (nilSinks) Started() error     { return errors.New("started") }

var ofProcess = table{
	"zero SupervisorConfig": func() any {
		s, err := process.NewSupervisor(process.SupervisorConfig{})
		return after(s, err, func(s *process.Supervisor) any { return s.Close() })
	},
	"supervisor: after close": func() any {
		return supervisor(func(s *process.Supervisor) any { return all(s.Close(), two(s.Start(program("exit 0")))) })
	},
	"supervisor: remove odd": func() any {
		return supervisor(func(s *process.Supervisor) any { s.RemoveIfKilled(); s.RemoveIfKilled("", huge); return nil })
	},
	"zero Config":            started(process.Config{}),
	"no program":             started(odd(func(c *process.Config) { c.Entrypoint = "" })),
	"missing program":        started(odd(func(c *process.Config) { c.Entrypoint = "/no/where" })),
	"program is a directory": started(odd(func(c *process.Config) { c.Entrypoint = "/" })),
	"program with zero byte": started(odd(func(c *process.Config) { c.Entrypoint = "a\x00b" })),
	"program and function":   started(odd(func(c *process.Config) { c.Func = "echo" })),
	"unknown function":       started(process.Config{Func: "none", Args: map[int][]string{0: nil}, Envs: envs{0: nil}}),
	"function, nil input":    started(process.Config{Func: "echo", Inputs: map[int][]byte{0: nil}, Envs: envs{0: nil}}),
	"function, no workers":   started(process.Config{Func: "echo", Inputs: map[int][]byte{}, Envs: envs{}}),
	"args and inputs":        started(odd(func(c *process.Config) { c.Inputs = map[int][]byte{0: nil} })),
	"nil envs":               started(odd(func(c *process.Config) { c.Envs = nil })),
	"envs of other ranks":    started(odd(func(c *process.Config) { c.Envs = envs{7: nil} })),
	"args of rank -1":        started(odd(func(c *process.Config) { c.Args = map[int][]string{-1: nil} })),
	"env with zero byte":     started(odd(func(c *process.Config) { c.Envs = envs{0: {"A=\x00": "b"}} })),
	"huge argument":          started(program("exit 0", huge)),
	"closed stdin":           started(odd(func(c *process.Config) { c.Stdin = closedFile() })),
	"closed extra file":      started(odd(func(c *process.Config) { c.ExtraFiles = map[int][]*os.File{0: {closedFile()}} })),
	"nil extra file":         started(odd(func(c *process.Config) { c.ExtraFiles = map[int][]*os.File{0: {nil}} })),
	"extra file of rank 9":   started(odd(func(c *process.Config) { c.ExtraFiles = map[int][]*os.File{9: {os.Stdin}} })),
	"CPUs -1, huge, none":    started(odd(func(c *process.Config) { c.CPUs = map[int][]int{0: {-1, 1 << 30}, 5: {}} })),
	"negative times": started(odd(func(c *process.Config) {
		c.Grace, c.LeftoverGrace, c.HelperTimeout, c.UninterruptibleTimeout = -2, -2, -2, -2
	})),
	"huge times": started(odd(func(c *process.Config) {
		c.Grace, c.LeftoverGrace, c.HelperTimeout, c.UninterruptibleTimeout = ever, ever, ever, ever
	})),
	"nil *logs.Attempt":        started(odd(func(c *process.Config) { c.Logs = (*logs.Attempt)(nil) })),
	"logs with nil sinks":      started(odd(func(c *process.Config) { c.Logs = nilSinks{} })),
	"group: wait cancelled":    started(program("exit 3"), func(g *process.Group) any { return two(g.Wait(done)) }),
	"group: close twice":       started(program("sleep 300"), func(g *process.Group) any { g.Close(0, 0); g.Close(syscall.SIGTERM, time.Hour); return g.PIDs() }),
	"group: close, signal 99":  started(program("sleep 300"), func(g *process.Group) any { g.Close(99, time.Hour); return nil }),
	"group: close, signal -1":  started(program("sleep 300"), func(g *process.Group) any { g.Close(-1, time.Hour); return nil }),
	"group: close, grace < 0":  started(program("trap '' TERM; sleep 300"), func(g *process.Group) any { g.Close(0, never); return nil }),
	"group: close, huge grace": started(program("sleep 300"), func(g *process.Group) any { g.Close(0, ever); return nil }),
	"group: kill twice":        started(program("sleep 300"), func(g *process.Group) any { g.Kill(); g.Kill(); <-g.Done(); g.Kill(); return nil }),
	"group: signal odd": started(program("sleep 300"), func(g *process.Group) any {
		sent := all(g.Signal(-1, 0), g.Signal(7, syscall.SIGTERM), g.Signal(0, 99), g.Signal(0, -1))
		g.Kill()
		return sent
	}),
	"group: replace odd": started(odd(func(c *process.Config) {
		c.Apart, c.Args = true, map[int][]string{0: {"-c", "exit 3"}, 1: {"-c", "sleep 300"}}
		c.Envs = envs{0: nil, 1: nil}
	}), func(g *process.Group) any {
		<-g.Failed()
		replaced := all(g.Replace(-1, nil, nil), g.Replace(9, nil, nil), g.Replace(0, nil, nil))
		g.Close(0, 0)
		return all(replaced, g.Replace(0, nil, nil))
	}),
	"callbacks of a stop": started(odd(func(c *process.Config) {
		c.Args = map[int][]string{0: {"-c", "exit 3"}, 1: {"-c", "sleep 300"}}
		c.Envs, c.Leftovers = envs{0: nil, 1: nil}, process.Leftovers{LeftoverGrace: never, HelperTimeout: ever, NoRestart: true}
		c.BeforeStop = func(failed []process.Exit, pids map[int]int) { clear(pids); clear(failed) }
		c.Unheeded = func(context.Context, map[int]int) {}
	})),
	"a fork of nothing": started(odd(func(c *process.Config) {
		c.Fork = func(process.Image, func(int) error) error { return errors.New("no fork") }
	})),
	"a fork of another": started(odd(func(c *process.Config) {
		c.Fork = func(_ process.Image, adopt func(int) error) error { return errors.Join(adopt(-1), adopt(1<<30)) }
	})),
	"warm: zero Config": func() any {
		h := warm.New(done, warm.Config{Logger: quiet})
		h.Close()
		h.Close()
		return h.Stats()
	},
	"warm: no program": func() any {
		return supervisor(func(s *process.Supervisor) any {
			h := warm.New(bg, warm.Config{Supervisor: s, Varies: func(string) bool { return false }, Dir: temp("warm"), Logger: quiet})
			defer h.Close()
			<-h.Prepare(func() process.Config { return process.Config{} })
			_, zero := h.Start(process.Config{})
			_, missing := h.Start(odd(func(c *process.Config) { c.Entrypoint = "/no/where" }))
			return all(zero, missing, h.Stats())
		})
	},
	"warm: server at no socket": func() any { return all(two(warm.NewServer(done, -1, quiet)), two(warm.NewServer(bg, 1<<20, quiet))) },
	"notify of nothing": func() any {
		ctx, hurry, stop := process.NotifyContext(bg, nil)
		stop()
		stop()
		return all(ctx.Err(), hurry == nil)
	},
	"notify of odd signals": func() any { _, _, stop := process.NotifyContext(done, quiet, 0, -1, 99, 9); stop(); return nil },
	"unregistered function": func() any { return all(process.CheckFunc(""), process.CheckFunc(huge)) },
	"zero Exit":             func() any { var e process.Exit; var v any; return all(e.Observation(), e.Decode(&v), e.Decode(nil)) },
	"zero Result":           func() any { var r process.Result; return all(r.IsFailed(), r.ReturnValues()) },
	"nil errors": func() any {
		return all((&process.SignalError{}).Error(), (&process.SignalError{Signal: -7}).Error(), (&process.StartError{}).Error(), (&process.FuncError{}).Error())
	},
	"JSON of junk": func() any {
		f := process.JSON(func(_ context.Context, n int) (func(), error) { return func() {}, nil })
		_, junk := f(bg, []byte("{"))
		_, noJSON := f(bg, []byte("1"))
		return all(junk, noJSON)
	},
}
