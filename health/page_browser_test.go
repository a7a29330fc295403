package health_test

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/internal/test/chromium"
)

var (
	pictures   = flag.String("pictures", "", "write pictures of the status page of -pictures-of to this directory")
	picturesOf = flag.String("pictures-of", "", "the page of a job that goes on after a failure")
)

// attack is a line of a log that must stay text.
const attack = `<script>window.pwned = 1</script><img src=x onerror="window.pwned = 2">`

// busyJob is a job that has been through a lot, at a fixed time.
func busyJob(t testing.TB, now time.Time) *fake {
	at := func(before time.Duration) time.Time { return now.Add(-before) }
	f := &fake{alive: time.Now()}
	f.state = jobstate.State{
		Time: now,
		Job: jobstate.Job{
			RunID: "llama-sft-0412", Role: "default", Backend: "quorum", Endpoint: "10.4.0.11:29400", Entrypoint: "train.py --config sft.toml",
			Started: at(42 * time.Minute), State: "HEALTHY", Phase: "running", Round: 3,
			Restarts: 2, MaxRestarts: 5, MinHosts: 3, MaxHosts: 4, WorldSize: 16, LogDir: "/var/log/muster/llama-sft-0412",
		},
		Host: jobstate.Host{Name: "gpu-a17", GroupRank: 1},
		Hosts: []jobstate.Host{
			{Name: "gpu-a16", GroupRank: 0, Workers: 4, State: "HEALTHY"},
			{Name: "gpu-a17", GroupRank: 1, Workers: 4, State: "HEALTHY"},
			{Name: "gpu-a18", GroupRank: 2, Workers: 4, State: "HEALTHY"},
			{Name: "gpu-b02", GroupRank: 3, Workers: 4, State: "HEALTHY"},
		},
		LiveTimers: 4,
		Timeline: []jobstate.Moment{
			{Time: at(42 * time.Minute), Kind: "phase", Phase: "rendezvous", What: "joined the rendezvous"},
			{Time: at(40 * time.Minute), Kind: "round", Phase: "running", Round: 0, What: "round 0 complete", Why: "4 hosts, 16 workers"},
			{Time: at(29 * time.Minute), Kind: "failure", Round: 0, What: "rank 9 failed", Why: "killed by SIGKILL: out of memory, on gpu-a18"},
			{Time: at(29*time.Minute - time.Second), Kind: "restart", Phase: "restarting", Round: 0, Restarts: 1, What: "restart 1 of 5"},
			{Time: at(28*time.Minute + 20*time.Second), Kind: "round", Phase: "running", Round: 1, Restarts: 1, What: "round 1 complete", Why: "4 hosts, 16 workers"},
			{Time: at(18 * time.Minute), Kind: "hosts", Phase: "rendezvous", Round: 1, Restarts: 1, What: "gpu-b01 is lost", Why: "it died or cannot be reached"},
			{Time: at(17 * time.Minute), Kind: "round", Phase: "running", Round: 2, Restarts: 1, What: "round 2 complete", Why: "3 hosts, 12 workers"},
			{Time: at(7 * time.Minute), Kind: "failure", Round: 2, Restarts: 1, What: "rank 6 missed its deadline", Why: "timer train_step, 60 s; rank 6 in load_batch, 3 ranks in all_reduce"},
			{Time: at(7*time.Minute - 2*time.Second), Kind: "restart", Phase: "restarting", Round: 2, Restarts: 2, What: "restart 2 of 5"},
			{Time: at(6*time.Minute + 40*time.Second), Kind: "hosts", Phase: "rendezvous", Round: 2, Restarts: 2, What: "gpu-b02 has come"},
			{Time: at(6 * time.Minute), Kind: "round", Phase: "running", Round: 3, Restarts: 2, What: "round 3 complete", Why: "4 hosts, 16 workers"},
		},
		Failures: []jobstate.Failure{{Time: at(7 * time.Minute), Report: "/var/log/muster/llama-sft-0412/attempt_1/report.json", ProcessFailure: failure.ProcessFailure{
			Observation: failure.Observation{Rank: 6, LocalRank: 2, PID: 40112, Host: "gpu-a17"}, Root: true, Cause: "killed by SIGKILL: it missed the deadline of its timer train_step",
			Message: "Signal 9 (SIGKILL) received by PID 40112\nwhat the workers did: 3 ranks in all_reduce (distributed_c10d.py:4181), rank 6 in load_batch (train.py:21)",
		}}},
	}
	for i := range 4 {
		rank := 4 + i
		var out strings.Builder
		for step := range 12 {
			fmt.Fprintf(&out, "step %d loss %.4f lr 2.0e-05 tokens/s %d\n", 1836+step, 1.9-float64(step)*0.0123, 51_200+step*17+i)
		}
		if i == 2 {
			out.WriteString("saving: 10%\rsaving: 55%\r\x1b[32msaving: 91%\x1b[0m")
		}
		stderr := ""
		if i == 3 {
			stderr = "UserWarning: The given NumPy array is not writable\n"
		}
		f.state.Workers = append(f.state.Workers, jobstate.Worker{
			Rank: rank, LocalRank: i, PID: 41870 + i, State: "HEALTHY", Started: at(6 * time.Minute),
			Usage:      jobstate.Usage{CPUSeconds: 655, CPUPercent: 104 + float64(i*9), RSSBytes: 18<<30 + int64(i)<<28, Processes: 9, Threads: 140},
			LastOutput: at(time.Duration(300+400*i) * time.Millisecond), Heartbeat: &jobstate.Heartbeat{Step: 1847, Time: at(time.Second)},
			Stdout: write(t, "stdout.log", out.String()), Stderr: write(t, "stderr.log", stderr),
		})
		if i < 3 {
			percent := 88 + i*4
			f.state.Workers[i].GPU = &agent.GPU{Index: i, Percent: &percent, UsedBytes: int64(61+i) << 30, TotalBytes: 80 << 30}
		}
	}
	return f
}

// looks are the ways in which the page is looked at.
var looks = []struct {
	name, scheme string
	width        int
}{
	{"status-page", "light", 1400},
	{"status-page-dark", "dark", 1400},
	{"status-page-phone", "light", 390},
}

// TestPictures takes the pictures of docs/ from a real job: internal/tools/pictures.sh
// runs both.
func TestPictures(t *testing.T) {
	if *pictures == "" {
		t.Skip("takes pictures of a job with -pictures")
	}
	b := chromium.Start(t, "../internal/tools/chromium.sh")
	for _, look := range looks {
		p := b.Tab()
		p.Width(look.width, look.scheme)
		p.Open(*picturesOf)
		untilScripted(p)
		p.Screenshot(filepath.Join(*pictures, look.name+".png"))
		p.Close()
	}
}

func TestPageInBrowser(t *testing.T) {
	b := chromium.Start(t, "../internal/tools/chromium.sh")
	now := time.Date(2026, 4, 12, 16, 20, 30, 0, time.UTC)
	for _, tt := range looks {
		t.Run(tt.name, func(t *testing.T) {
			b.T = t
			f := busyJob(t, now)
			_, url := serve(t, f, nil)
			p := b.Tab()
			p.Width(tt.width, tt.scheme)
			p.Open(url)
			untilScripted(p)

			say(t, f.state.Workers[1].Stdout, attack)
			p.Until(`document.body.innerText.includes("pwned")`)
			checkPage(t, p, tt.width)

			// What a person does in the page outlives an update.
			p.Eval(`document.getElementById("older").open = true; document.getElementById("l4").open = false; window.kept = document.getElementById("w4")`, nil)
			f.set(func(f *fake) {
				f.state.Time = now.Add(time.Second)
				f.state.Workers[1].Heartbeat = &jobstate.Heartbeat{Step: 987_654, Time: now}
				f.state.Job.Phase, f.state.Job.WaitingFor = "restarting", "2 of 4 hosts"
				f.state.Hosts = f.state.Hosts[:3]
				f.state.LiveTimers = 0
			})
			p.Until(`document.body.innerText.includes("987654")`)
			var got []string
			p.Eval(`[document.getElementById("phase").textContent, document.title, String(document.querySelectorAll(".hosts li").length),
				String(document.getElementById("older").open), String(document.getElementById("l4").open),
				String(window.kept === document.getElementById("w4"))]`, &got)
			want := []string{"restarting", "restarting · train.py --config sft.toml", "3", "true", "false", "true"}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("after an update the page has\n%q, want\n%q", got, want)
			}
			checkPage(t, p, tt.width)
			p.Close()
		})
	}
}

// TestPageWithoutScript: the page is whole without its script, and updates itself
// less gracefully.
func TestPageWithoutScript(t *testing.T) {
	b := chromium.Start(t, "../internal/tools/chromium.sh")
	now := time.Now()
	f := busyJob(t, now)
	say(t, f.state.Workers[1].Stdout, attack)
	_, url := serve(t, f, nil)
	p := b.Tab()
	p.Call("Emulation.setScriptExecutionDisabled", map[string]any{"value": true}, nil)
	p.Width(390, "light")
	p.Open(url)
	checkPage(t, p, 390)
	f.set(func(f *fake) { f.state.Workers[1].Heartbeat = &jobstate.Heartbeat{Step: 987_654, Time: now} })
	for i := 0; ; i++ {
		var there bool
		p.Event("Page.loadEventFired")
		if p.Eval(`document.body.innerText.includes("987654")`, &there); there {
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
	b := chromium.Start(t, "../internal/tools/chromium.sh")
	f := busyJob(t, time.Now())
	f.state.Time = time.Time{} // which time it is when somebody asks
	server := &http.Server{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server.Handler = listen(t, f, nil).Handler()
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { server.Close(); wg.Wait() })

	p := b.Tab()
	p.Open("http://" + l.Addr().String())
	p.Until(`document.getElementById("live").textContent === "live"`)
	f.set(func(f *fake) { f.state.Time = time.Now() }) // now its time stands still
	p.Until(`document.getElementById("live").textContent.startsWith("no news for ")`)
	server.Close()
	p.Until(`document.getElementById("live").textContent.startsWith("no answer for ")`)
	var text string
	if p.Eval(`document.getElementById("phase").textContent`, &text); text != "running" {
		t.Errorf("what was known has become %q", text)
	}
}

// untilScripted waits until the page's script has said how old the page is: "live",
// which it is for a few seconds only where the state's time stands still.
func untilScripted(p *chromium.Tab) {
	p.Until(`document.getElementById("live").textContent !== ""`)
}

// say adds a line to a log.
func say(t *testing.T, path, line string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(line + "\n")
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestPageCrowded: a large job that has failed, with long words everywhere, fits.
func TestPageCrowded(t *testing.T) {
	b := chromium.Start(t, "../internal/tools/chromium.sh")
	now := time.Date(2026, 4, 12, 16, 20, 30, 0, time.UTC)
	f := crowdedJob(t, now)
	_, url := serve(t, f, nil)
	for _, width := range []int{390, 800, 1400, 2560} {
		p := b.Tab()
		p.Width(width, "dark")
		p.Open(url)
		untilScripted(p)
		checkPage(t, p, width)
		p.Close()
	}
}

// crowdedJob is the last state of a large job.
func crowdedJob(t *testing.T, now time.Time) *fake {
	f := busyJob(t, now)
	long := strings.Repeat("long_word", 20)
	s := &f.state
	s.Job.RunID, s.Job.Entrypoint, s.Job.Endpoint = long, long, long
	s.Job.Phase, s.Job.State = "ended", "FAILED"
	s.Host.Name, s.Hosts[0].Name = long, long
	for i := range 300 {
		s.Hosts = append(s.Hosts, jobstate.Host{Name: fmt.Sprintf("gpu-%03d", i), GroupRank: 4 + i, Workers: 8, State: "FAILED"})
	}
	exits := []*jobstate.Exit{{Time: now, Code: 1}, {Time: now, Code: -9, Signal: "SIGKILL", Cause: "out of memory"}, {Time: now, Code: -15, Signal: "SIGTERM", Cause: long}}
	for i := range 28 {
		w := s.Workers[i%4]
		w.LocalRank, w.Rank, w.State, w.Exit = 4+i, 8+i, "FAILED", exits[i%3]
		w.Usage, w.Heartbeat = jobstate.Usage{}, nil
		s.Workers = append(s.Workers, w)
	}
	for i := range 150 {
		s.Timeline = append(s.Timeline, jobstate.Moment{Time: now.Add(time.Duration(i-200) * time.Second), Kind: "failure",
			Phase: []jobstate.Phase{"restarting", "running"}[i%2], Round: i, What: "rank 3 failed", Why: long})
	}
	s.Timeline = append(s.Timeline, jobstate.Moment{Time: now, Kind: "end", Phase: "ended", Round: 150, What: "the job has failed"})
	for i := range 8 {
		s.Failures = append(s.Failures, jobstate.Failure{Report: long, ProcessFailure: failure.ProcessFailure{
			Observation: failure.Observation{Rank: 20 + i, Host: long}, Cause: "exit status 1", Message: long + "\nRuntimeError: " + long}})
	}
	say(t, s.Workers[1].Stdout, attack)
	return f
}

// checkPage looks at what must hold of the page at any time.
func checkPage(t *testing.T, p *chromium.Tab, width int) {
	t.Helper()
	var wide []string
	// Not innerWidth: phones make that larger for pages that are too wide.
	p.Eval(fmt.Sprintf(`[...document.querySelectorAll("body *")].filter((e) => !e.closest("pre, svg") || e.matches("pre"))
		.filter((e) => e.getBoundingClientRect().right > %d + 1).map((e) => e.outerHTML.slice(0, 120))
		.concat(document.documentElement.scrollWidth > %[1]d ? ["the document is " + document.documentElement.scrollWidth] : [])`, width), &wide)
	if len(wide) > 0 {
		t.Errorf("wider than %d pixels: %q", width, wide)
	}
	var safe bool
	p.Eval(`window.pwned === undefined && document.querySelectorAll("img, main script").length === 0`, &safe)
	if !safe {
		t.Error("a line of a log has become a part of the page")
	}
	var text string
	p.Eval(`document.querySelectorAll("#logs details")[1].querySelector("pre").textContent`, &text)
	if !strings.Contains(text, attack) {
		t.Errorf("the log of local rank 1 does not show %s:\n%s", attack, text)
	}
	if wrong := p.Browser.Complaints(); len(wrong) > 0 {
		t.Errorf("the console says %q", wrong)
	}
}
