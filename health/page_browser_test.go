package health_test

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/health"
)

var screenshots = flag.String("screenshots", "", "write screenshots of the status page to this directory")

// attack is a line of a log that must stay text.
const attack = `<script>window.pwned = 1</script><img src=x onerror="window.pwned = 2">`

// busyJob is a job that has been through a lot, at a fixed time.
func busyJob(t testing.TB, now time.Time) *fake {
	at := func(before time.Duration) time.Time { return now.Add(-before) }
	f := &fake{alive: time.Now()}
	f.state = health.State{
		Time: now,
		Job: health.Job{
			RunID: "llama-sft-0412", Role: "default", Backend: "quorum", Endpoint: "10.4.0.11:29400", Entrypoint: "train.py --config sft.toml",
			Started: at(42 * time.Minute), State: "HEALTHY", Phase: health.Running, Round: 3,
			Restarts: 2, MaxRestarts: 5, MinHosts: 3, MaxHosts: 4, WorldSize: 16, LogDir: "/var/log/muster/llama-sft-0412",
		},
		Host: health.Host{Name: "gpu-a17", Addr: "10.4.0.12", GroupRank: 1},
		Hosts: []health.Host{
			{Name: "gpu-a16", Addr: "10.4.0.11", GroupRank: 0, Workers: 4, State: "HEALTHY"},
			{Name: "gpu-a17", Addr: "10.4.0.12", GroupRank: 1, Workers: 4, State: "HEALTHY"},
			{Name: "gpu-a18", Addr: "10.4.0.13", GroupRank: 2, Workers: 4, State: "HEALTHY"},
			{Name: "gpu-b02", Addr: "10.4.0.31", GroupRank: 3, Workers: 4, State: "HEALTHY"},
		},
		LiveTimers: 4,
		Timers: []health.Timer{
			{PID: 41872, Rank: 6, Scope: "save_checkpoint", Acquired: at(275 * time.Second), Deadline: now.Add(25 * time.Second), Remaining: 25},
			{PID: 41870, Rank: 4, Scope: "train_step", Acquired: at(4 * time.Second), Deadline: now.Add(56 * time.Second), Remaining: 56},
			{PID: 41871, Rank: 5, Scope: "train_step", Acquired: at(16 * time.Second), Deadline: now.Add(44 * time.Second), Remaining: 44},
			{PID: 41873, Rank: 7, Scope: "train_step", Acquired: at(3 * time.Second), Deadline: now.Add(57 * time.Second), Remaining: 57},
		},
		Timeline: []health.Moment{
			{Time: at(42 * time.Minute), Kind: health.KindPhase, Phase: health.Rendezvous, What: "joined the rendezvous"},
			{Time: at(40 * time.Minute), Kind: health.KindRound, Phase: health.Running, Round: 0, What: "round 0 complete", Why: "4 hosts, 16 workers"},
			{Time: at(29 * time.Minute), Kind: health.KindFailure, Round: 0, What: "rank 9 failed", Why: "killed by SIGKILL: out of memory, on gpu-a18"},
			{Time: at(29*time.Minute - time.Second), Kind: health.KindRestart, Phase: health.Restarting, Round: 0, Restarts: 1, What: "restart 1 of 5"},
			{Time: at(28*time.Minute + 20*time.Second), Kind: health.KindRound, Phase: health.Running, Round: 1, Restarts: 1, What: "round 1 complete", Why: "4 hosts, 16 workers"},
			{Time: at(18 * time.Minute), Kind: health.KindHosts, Phase: health.Rendezvous, Round: 1, Restarts: 1, What: "gpu-b01 is lost", Why: "it died or cannot be reached"},
			{Time: at(17 * time.Minute), Kind: health.KindRound, Phase: health.Running, Round: 2, Restarts: 1, What: "round 2 complete", Why: "3 hosts, 12 workers"},
			{Time: at(7 * time.Minute), Kind: health.KindFailure, Round: 2, Restarts: 1, What: "rank 6 missed its deadline", Why: "timer train_step, 60 s; rank 6 in DataLoader.__next__, 11 ranks in all_reduce"},
			{Time: at(7*time.Minute - 2*time.Second), Kind: health.KindRestart, Phase: health.Restarting, Round: 2, Restarts: 2, What: "restart 2 of 5"},
			{Time: at(6*time.Minute + 40*time.Second), Kind: health.KindHosts, Phase: health.Rendezvous, Round: 2, Restarts: 2, What: "gpu-b02 has come"},
			{Time: at(6 * time.Minute), Kind: health.KindRound, Phase: health.Running, Round: 3, Restarts: 2, What: "round 3 complete", Why: "4 hosts, 16 workers"},
		},
		Failures: []health.Failure{{
			Rank: 6, LocalRank: 2, PID: 40112, Host: "gpu-a17", Time: at(7 * time.Minute), Root: true, Cause: "killed by SIGKILL: it missed the deadline of its timer train_step",
			Message: "rank 6 in DataLoader.__next__ (dataset.py:88), 11 ranks in all_reduce (ddp.py:412)", Report: "/var/log/muster/llama-sft-0412/attempt_1/report.json",
		}},
	}
	for i := range 4 {
		rank := 4 + i
		var out strings.Builder
		for step := range 12 {
			fmt.Fprintf(&out, "step %d loss %.4f lr 2.0e-05 tokens/s %d\n", 1836+step, 1.9-float64(step)*0.0123, 51_200+step*17+i)
		}
		if i == 1 {
			out.WriteString(attack + "\n")
		}
		if i == 2 {
			out.WriteString("saving: 10%\rsaving: 55%\r\x1b[32msaving: 91%\x1b[0m")
		}
		stderr := ""
		if i == 3 {
			stderr = "UserWarning: The given NumPy array is not writable\n"
		}
		f.state.Workers = append(f.state.Workers, health.Worker{
			Rank: rank, LocalRank: i, PID: 41870 + i, State: "HEALTHY", Started: at(6 * time.Minute),
			Usage:      health.Usage{CPUSeconds: 655, CPUPercent: 104 + float64(i*9), RSSBytes: 18<<30 + int64(i)<<28, Processes: 9, Threads: 140},
			LastOutput: at(time.Duration(300+400*i) * time.Millisecond), Heartbeat: &health.Heartbeat{Step: 1847, Time: at(time.Second)},
			Stdout: write(t, "stdout.log", out.String()), Stderr: write(t, "stderr.log", stderr),
		})
	}
	return f
}

func TestPageInBrowser(t *testing.T) {
	b := startBrowser(t)
	now := time.Date(2026, 4, 12, 16, 20, 30, 0, time.UTC)
	for _, tt := range []struct {
		name, scheme string
		width        int
	}{
		{"status-page", "light", 1400},
		{"status-page-dark", "dark", 1400},
		{"status-page-phone", "light", 390},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b.t = t
			f := busyJob(t, now)
			_, url := serve(t, f, nil)
			p := b.tab()
			p.width(tt.width, tt.scheme)
			p.open(url)
			p.until(`document.getElementById("live").textContent === "live"`)
			checkPage(t, p, tt.width)
			if *screenshots != "" {
				p.screenshot(filepath.Join(*screenshots, tt.name+".png"))
			}

			// What a person does in the page outlives an update.
			p.eval(`document.getElementById("older").open = true; document.getElementById("l0").open = false; window.kept = document.getElementById("w0")`, nil)
			f.set(func(f *fake) {
				f.state.Time = now.Add(time.Second)
				f.state.Workers[1].Heartbeat = &health.Heartbeat{Step: 987_654, Time: now}
				f.state.Job.Phase, f.state.Job.WaitingFor = health.Restarting, "2 of 4 hosts"
				f.state.Hosts = f.state.Hosts[:3]
				f.state.Timers, f.state.LiveTimers = nil, 0
			})
			p.until(`document.body.innerText.includes("987654")`)
			var got []string
			p.eval(`[document.getElementById("phase").textContent, document.title, String(document.querySelectorAll(".hosts li").length),
				String(document.querySelectorAll(".timers").length), String(document.getElementById("older").open), String(document.getElementById("l0").open),
				String(window.kept === document.getElementById("w0"))]`, &got)
			want := []string{"restarting", "restarting · llama-sft-0412", "3", "0", "true", "false", "true"}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("after an update the page has\n%q, want\n%q", got, want)
			}
			checkPage(t, p, tt.width)
			p.close()
		})
	}
}

// TestPageWithoutScript: the page is whole without its script, and updates itself
// less gracefully.
func TestPageWithoutScript(t *testing.T) {
	b := startBrowser(t)
	now := time.Now()
	f := busyJob(t, now)
	_, url := serve(t, f, nil)
	p := b.tab()
	p.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": true}, nil)
	p.width(390, "light")
	p.open(url)
	checkPage(t, p, 390)
	f.set(func(f *fake) { f.state.Workers[1].Heartbeat = &health.Heartbeat{Step: 987_654, Time: now} })
	for i := 0; ; i++ {
		var there bool
		p.event("Page.loadEventFired")
		if p.eval(`document.body.innerText.includes("987654")`, &there); there {
			break
		}
		if i == 3 {
			t.Fatal("it does not refresh itself")
		}
	}
}

// TestPageLost: the page says so when nobody answers any more, and when the agent
// answers but has nothing new; it comes back by itself.
func TestPageLost(t *testing.T) {
	b := startBrowser(t)
	f := busyJob(t, time.Now())
	server := &http.Server{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server.Handler = listen(t, f, nil).Handler()
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { server.Close(); wg.Wait() })

	p := b.tab()
	p.open("http://" + l.Addr().String())
	p.until(`document.getElementById("live").textContent === "live"`)
	p.until(`document.getElementById("live").textContent.startsWith("no news for 4 s")`) // its time stands still
	server.Close()
	p.until(`document.getElementById("live").textContent.startsWith("no answer for ")`)
	var text string
	if p.eval(`document.getElementById("phase").textContent`, &text); text != "running" {
		t.Errorf("what was known has become %q", text)
	}
}

// checkPage looks at what must hold of the page at any time.
func checkPage(t *testing.T, p *tab, width int) {
	t.Helper()
	var wide []string
	p.eval(`[...document.querySelectorAll("body *")].filter((e) => !e.closest("pre, svg") || e.matches("pre, .timeline"))
		.filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 120))
		.concat(document.documentElement.scrollWidth > innerWidth ? ["the document is " + document.documentElement.scrollWidth] : [])`, &wide)
	if len(wide) > 0 {
		t.Errorf("wider than %d pixels: %q", width, wide)
	}
	var safe bool
	p.eval(`window.pwned === undefined && document.querySelectorAll("img, main script").length === 0`, &safe)
	if !safe {
		t.Error("a line of a log has become a part of the page")
	}
	var text string
	p.eval(`document.getElementById("l1").querySelector("pre").textContent`, &text)
	if !strings.Contains(text, attack) {
		t.Errorf("the log of local rank 1 does not show %s:\n%s", attack, text)
	}
	if wrong := p.b.complaints(); len(wrong) > 0 {
		t.Errorf("the console says %q", wrong)
	}
}
