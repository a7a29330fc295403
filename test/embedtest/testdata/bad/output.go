package main

import (
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/metrics"
	"github.com/muster-run/muster/policy"
	"github.com/muster-run/muster/process/warm"
	"github.com/muster-run/muster/timer"
)

func logged(change func(*logs.Config), calls ...func(*logs.Run) any) func() any {
	return func() any {
		cfg := logs.Config{Dir: temp("logs"), RunID: "job", Logger: quiet}
		change(&cfg)
		r, err := logs.New(cfg)
		return after(r, err, append(calls, func(r *logs.Run) any { return r.Close(false) })...)
	}
}

func same(*logs.Config) {}

func attempt(workers []logs.Worker, calls ...func(*logs.Attempt) any) func() any {
	return logged(same, func(r *logs.Run) any {
		a, err := r.Attempt(0, workers)
		return after(a, err, append(calls, func(a *logs.Attempt) any { return two(a.Finish(bg)) })...)
	})
}

var one = []logs.Worker{{}}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("the writer fails") }

var ofLogs = table{
	"zero Config": func() any {
		r, err := logs.New(logs.Config{})
		return after(r, err, func(r *logs.Run) any { return r.Close(false) })
	},
	"a file as directory":      logged(func(c *logs.Config) { c.Dir = "/etc/passwd" }),
	"directory with zero byte": logged(func(c *logs.Config) { c.Dir = "a\x00b" }),
	"run ID with zero byte":    logged(func(c *logs.Config) { c.RunID = "a\x00b" }),
	"huge run ID":              logged(func(c *logs.Config) { c.RunID = huge }),
	"run ID of dots":           logged(func(c *logs.Config) { c.RunID = "../../.." }),
	"no such streams": logged(func(c *logs.Config) {
		c.Redirects, c.Tee = logs.StdSpec{All: 9}, logs.StdSpec{ByRank: map[int]logs.Std{-1: 200}}
	}),
	"ranks -1 and huge": logged(func(c *logs.Config) { c.LocalRanksFilter, c.RanksFilter = []int{-1, 1 << 62}, [][2]int{{5, -5}} }),
	"odd prefix": logged(func(c *logs.Config) { c.LinePrefixTemplate, c.Tee = "${", logs.StdSpec{All: logs.StdAll} }, func(r *logs.Run) any {
		a, err := r.Attempt(0, one)
		return after(a, err, func(a *logs.Attempt) any { return two(a.Finish(bg)) })
	}),
	"typed nil writers": logged(func(c *logs.Config) { c.Stdout, c.Stderr = (*os.File)(nil), (*os.File)(nil) }),
	"closed writers": logged(func(c *logs.Config) { c.Stdout, c.Stderr = closedFile(), closedFile() }, func(r *logs.Run) any {
		a, err := r.Attempt(0, one)
		return after(a, err, func(a *logs.Attempt) any { return all(a.Started(), two(a.Finish(bg))) })
	}),
	"filters without a file": logged(func(c *logs.Config) { c.Dir, c.DuplicateStdoutFilters = os.DevNull, []string{"x"} }),
	"layout of nothing": logged(func(c *logs.Config) {
		c.Layout, c.Redirects = func(string, logs.Worker) logs.Files { return logs.Files{} }, logs.StdSpec{All: logs.StdAll}
	}, func(r *logs.Run) any { return two(r.Attempt(0, one)) }),
	"layout of one file": logged(func(c *logs.Config) {
		c.Layout, c.Redirects = func(dir string, _ logs.Worker) logs.Files {
			return logs.Files{Stdout: dir + "/x", Stderr: dir + "/x", ErrorFile: dir}
		}, logs.StdSpec{All: logs.StdAll}
	}, func(r *logs.Run) any { return two(r.Attempt(0, []logs.Worker{{}, {LocalRank: 1}})) }),
	"close twice":           logged(same, func(r *logs.Run) any { return all(r.Close(true), r.Close(false)) }),
	"attempt after close":   logged(same, func(r *logs.Run) any { return all(r.Close(true), two(r.Attempt(0, one))) }),
	"attempt -1, none":      logged(same, func(r *logs.Run) any { return all(two(r.Attempt(-1, nil)), two(r.Attempt(1<<62, one))) }),
	"ranks twice, negative": attempt([]logs.Worker{{LocalRank: -1}, {LocalRank: 3, Rank: -4}, {LocalRank: 3}}),
	"started twice":         attempt(one, func(a *logs.Attempt) any { return all(a.Started(), a.Started()) }),
	"finish twice":          attempt(one, func(a *logs.Attempt) any { return all(a.Started(), two(a.Finish(bg)), two(a.Finish(bg)), a.Started()) }),
	"finish cancelled":      attempt(one, func(a *logs.Attempt) any { return all(a.Started(), two(a.Finish(done))) }),
	"sinks of no worker": attempt(one, func(a *logs.Attempt) any {
		return all(a.Sink(-1), a.Sink(9), a.StderrTail(-1), a.StdoutTail(9), a.Output(-1))
	}),
	"follow nothing": attempt(one, func(a *logs.Attempt) any {
		return all(a.Follow(bg, logs.FollowConfig{}, nil), a.Follow(done, logs.FollowConfig{Stdout: true, Lines: -1}, func(*logs.Chunk) error { return io.EOF }))
	}),
	"std of junk": func() any {
		return all(two(logs.ParseStd("")), two(logs.ParseStd("9")), two(logs.ParseStd("0:1,")), two(logs.ParseStd("99999999999999999999:1")), logs.Std(200).String())
	},
	"printer of zero": func() any {
		p := logs.NewPrinter(io.Discard, logs.PrinterConfig{})
		return all(p.Put(-1, false, "", false, []byte("x\n")), p.End(9, true, ""), p.Flush(), p.Close(), p.Close())
	},
	"printer to ruin": func() any {
		p := logs.NewPrinter(failing{}, logs.PrinterConfig{Collapse: true, Live: true})
		return all(p.Put(0, false, "a", false, []byte(huge)), p.Flush(), p.Close())
	},
	"printer, closed": func() any {
		p := logs.NewPrinter(io.Discard, logs.PrinterConfig{})
		return all(p.Close(), p.Put(0, false, "", true, nil), p.Flush())
	},
	"stream of no one": func() any {
		return all(two(logs.OpenStream("", 0)), two(logs.OpenStream("/no/where", -1)), two(logs.OpenStream("/", 1<<62)))
	},
	"stream, closed": func() any {
		s, err := logs.OpenStream("/etc/passwd", -1)
		return after(s, err, func(s *logs.Stream) any { s.Close(); s.Close(); return s.Err() })
	},
}

var ofEvents = table{
	"zero Config": func() any {
		r, err := events.Open(events.Config{})
		return after(r, err, func(r *events.Recorder) any { return all(r.Close(), r.Close()) })
	},
	"unknown handler":     func() any { return two(events.Open(events.Config{Handler: "none"})) },
	"console of nobody":   func() any { return two(events.Open(events.Config{Handler: "console"})) },
	"file of nowhere":     func() any { return two(events.Open(events.Config{Handler: "file"})) },
	"file at a directory": func() any { return two(events.Open(events.Config{File: "/"})) },
	"file in nowhere":     func() any { c := events.Config{File: "/no/where/x"}; return all(c.Check(), two(events.Open(c))) },
	"file of zero byte":   func() any { return two(events.Open(events.Config{File: "a\x00b"})) },
	"record of odd lines": func() any {
		r, err := events.Open(events.Config{Handler: "console", Console: failing{}, Logger: quiet})
		return after(r, err, func(r *events.Recorder) any {
			for _, l := range []events.Line{events.Event{}, events.RdzvEvent{}, events.AttemptEvent{}, events.PreemptedEvent{}, events.Event{State: huge, RunTime: never, Time: time.Unix(1<<60, 0)}} {
				r.Record(l)
			}
			return r.Close()
		}, func(r *events.Recorder) any { r.Record(events.Event{}); return nil })
	},
	"record of nil": func() any {
		r, err := events.Open(events.Config{File: temp("events")})
		return after(r, err, func(r *events.Recorder) any { r.Record(nil); return r.Close() })
	},
	"observe nothing":    func() any { events.Observer(nil)(agent.Event{}); return nil },
	"the end of nothing": func() any { return events.EndEvent("", "", true, nil) },
}

// A still agent has nothing to tell.
type silent struct{}

func (silent) Job() *agent.Job                       { return nil }
func (silent) Workers() []agent.Worker               { return nil }
func (silent) TimerStats() (s timer.Stats, _ uint64) { return s, 0 }
func (silent) GPUs(time.Duration) []agent.GPU        { return nil }

var ofMetrics = table{
	"zero Job": func() any {
		var j metrics.Job
		j.Observe(agent.Event{})
		j.Watch(nil)
		return j.WritePrometheus(failing{})
	},
	"callbacks of nothing": func() any {
		j := metrics.Job{Warm: func() *warm.Stats { return nil }}
		j.Watch(silent{})
		return j.WritePrometheus(io.Discard)
	},
	"no handlers": func() any { metrics.Observer()(agent.Event{What: agent.Finished{}}); return nil },
	"a nil handler": func() any {
		metrics.Observer(nil, nil)(agent.Event{Job: &agent.Job{}, What: agent.Finished{}})
		return nil
	},
	"event of no job": func() any {
		metrics.Observer(metrics.Console(io.Discard))(agent.Event{What: agent.Finished{}})
		return nil
	},
	"console, ruined": func() any { metrics.Console(failing{}).Emit(metrics.Metric{Name: huge, Value: -1 << 63}); return nil },
	"nil console":     func() any { metrics.Console(nil).Emit(metrics.Metric{}); return nil },
}

var ofFailure = table{
	"zero Observation": func() any {
		f := failure.New(failure.Observation{})
		return all(f.Error(), f.Class(), f.ExitStatus(), f.Where(), f.LostPeer())
	},
	"odd Observation": func() any {
		return failure.New(failure.Observation{Rank: -1, ExitCode: -1 << 40, ErrorFile: "/dev/zero", Evidence: failure.Evidence{StderrTail: []byte(huge)}, StoppedBy: 200})
	},
	"error file of no one": func() any { return failure.New(failure.Observation{ErrorFile: "/", ExitCode: 1 << 40}).Note },
	"zero ProcessFailure": func() any {
		f := &failure.ProcessFailure{}
		return all(f.Error(), f.Class(), f.ExitStatus(), f.Beside(f), f.ErrorFileData())
	},
	"beside nobody": func() any { return failure.New(failure.Observation{}).Beside(nil) },
	"odd Evidence": func() any {
		f := failure.New(failure.Observation{ExitCode: -6, Evidence: failure.Evidence{Workers: -1, Hosts: -1, DiskFull: huge, StdoutTail: []byte(huge),
			Waits: []failure.Collective{{}, {Seq: -1, Waited: -1 << 62, Missing: []int{-1, 1 << 62}, At: huge}}}})
		title, said := f.Said()
		return all(title, said, f.Error())
	},
	"said of nothing": func() any {
		var zero, odd failure.Report
		odd.LeftOut, odd.Silent = -1, []string{""}
		return all(zero.Others(), odd.Others())
	},
	"report of nothing": func() any {
		r := failure.NewReport(failure.ReportConfig{}, nil)
		return all(r.Root(), r.WriteText(io.Discard), r.WriteTorchrun(io.Discard), r.WriteJSON(failing{}))
	},
	"report of nil": func() any {
		r := failure.NewReport(failure.ReportConfig{}, []*failure.ProcessFailure{nil})
		return all(r.Root(), r.WriteText(io.Discard))
	},
	"zero Report": func() any {
		r := &failure.Report{}
		return all(r.Root(), r.CheckVersion(), r.WriteText(io.Discard), r.WriteTorchrun(io.Discard))
	},
	"parse of junk": func() any {
		return all(two(failure.ParseReport(nil)), two(failure.ParseReport([]byte("null"))), two(failure.ParseReport([]byte(strings.Repeat("[", 1<<20)))))
	},
	"decode of junk": func() any {
		return all(two(failure.Decode(nil, never)), two(failure.Decode([]byte(`[null, {"rank": 1e99}]`), ever)))
	},
	"encode odd limits": func() any {
		text, left := failure.Encode([]*failure.ProcessFailure{failure.New(failure.Observation{})}, never, -1)
		return all(text, left)
	},
	"error file nowhere": func() any {
		return all(failure.WriteErrorFile("", nil), failure.WriteErrorFile("/no/where", io.EOF), failure.WriteErrorFile("/", io.EOF), failure.WriteErrorFile(temp("e"), nil))
	},
	"odd signals": func() any {
		return all(failure.Signal(-1).String(), failure.Signal(1<<30).String(), failure.Signal(syscall.SIGKILL))
	},
	"zero Preemption": func() any {
		p := &failure.Preemption{}
		p.Add(failure.PreemptedWorker{}, true)
		return all(p.String(), p.Text())
	},
}

var ofPolicy = table{
	"parse of nothing": func() any { return all(two(policy.Parse(nil, "")), two(policy.Parse([]byte("\x00"), ""))) },
	"parse of junk": func() any {
		return all(two(policy.Parse([]byte("rules: [[["), "f")), two(policy.Parse([]byte(strings.Repeat("[", 1<<20)), "f")))
	},
	"negative values": func() any {
		return two(policy.Parse([]byte("max_restarts: -1\nrules: [{action: retry, budget: {restarts: -1, window: -1h}, backoff: {initial: -5s}}]"), "f"))
	},
	"load of nowhere": func() any { return all(two(policy.Load("")), two(policy.Load("/no/where")), two(policy.Load("/"))) },
	"zero Policy":     func() any { var p policy.Policy; return all(p.Names(""), p.Notes(-1), p.Unsettled(policy.Failure{})) },
	"zero Engine":     func() any { var e policy.Engine; d := e.Decide(policy.Failure{}, time.Time{}); e.Record(d); return d },
	"odd failures": func() any {
		e := policy.Engine{Policy: &policy.Policy{}, MaxRestarts: -1}
		return all(e.Decide(policy.Failure{Restarts: -1, Ran: never, Stderr: huge}, time.Unix(1<<60, 0)), policy.Tail(nil))
	},
}
