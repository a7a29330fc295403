package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/job/accounts"
	"github.com/muster-run/muster/internal/job/slow"
	"github.com/muster-run/muster/rendezvous"
)

// A paceJob is a job of two hosts with two workers each. Host 1's clock is 3 s ahead.
type paceJob struct {
	rendezvous.Caller
	pacers [2]*pacer
	late   time.Duration // by which rank 3 comes later
	rng    *rand.Rand
	began  time.Time

	mu     sync.Mutex // guards the rest
	silent bool       // host 1 does not answer
	came   [][4]int64 // for each step and rank, by the true clock
}

const ahead = 3 * time.Second

// A paceHost is one of its hosts, as the agent.
type paceHost struct {
	*paceJob
	rank int
}

func (h paceHost) Answers() <-chan struct{} {
	answers := make(chan struct{})
	close(answers)
	return answers
}

func (h paceHost) Hosts() []string { return []string{"host0", "host1"} }

// Courses takes 4 ms. The first step begins 5 s after the start, and steps take 100 ms.
func (h paceHost) Courses(context.Context) (map[int]slow.Course, int) {
	time.Sleep(4 * time.Millisecond)
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[int]slow.Course{}
	for i := range 2 {
		rank := 2*h.rank + i
		a := slow.Arrivals{Rank: rank, Group: "dp", Title: "dp", Period: 1, First: int64(max(0, len(h.came)-2000))}
		for _, came := range h.came[a.First:] {
			a.At = append(a.At, came[rank]+int64(h.rank)*int64(ahead))
		}
		c := slow.Course{Arrivals: []slow.Arrivals{a}}
		if len(h.came) > 2 {
			c.Entered, c.Stepping = h.came[0][rank]+int64(h.rank)*int64(ahead), h.came[1][rank]+int64(h.rank)*int64(ahead)
		}
		all[i] = c
	}
	return all, 2 * h.rank
}

// Ask takes 2 ms there and back, and the other host has the same clock, so that its answer is moved.
func (j *paceJob) Ask(ctx context.Context, rank int, kind string, request []byte, _ int) ([]byte, error) {
	j.mu.Lock()
	silent := j.silent
	j.mu.Unlock()
	if silent || kind != paceKind || rank != 1 {
		return nil, errors.New("no answer")
	}
	time.Sleep(time.Millisecond)
	body, err := j.pacers[1].answer(ctx, request)
	var part pacePart
	if err = errors.Join(err, json.Unmarshal(body, &part)); err == nil {
		part.Began, part.Ended = part.Began+int64(ahead), part.Ended+int64(ahead)
		body, err = json.Marshal(part)
	}
	time.Sleep(time.Millisecond)
	return body, err
}

// steps lets the job make steps until a time after its start.
func (j *paceJob) steps(until time.Duration) {
	for time.Since(j.began) < until {
		at := time.Since(j.began)
		var came [4]int64
		for rank := range came {
			took := 90*time.Millisecond + time.Duration(j.rng.Int64N(int64(10*time.Millisecond)))
			if at < 5*time.Second {
				took += 5*time.Second - at
			}
			if rank == 3 {
				took += j.late
			}
			came[rank] = time.Now().Add(took).UnixNano()
		}
		time.Sleep(time.Until(time.Unix(0, slices.Max(came[:]))))
		j.mu.Lock()
		j.came = append(j.came, came)
		j.mu.Unlock()
	}
	synctest.Wait()
}

// Two hosts find out which rank is slow, say so once, and account for the time.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged [2]bytes.Buffer
		j := &paceJob{rng: rand.New(rand.NewPCG(1, 2)), began: time.Now()}
		ctx, end := context.WithCancel(t.Context())
		var records [2]*accounts.Log
		dirs := [2]string{t.TempDir(), t.TempDir()}
		tell := func(what any) {
			for i, p := range j.pacers {
				e := agent.Event{Time: time.Now(), Round: &rendezvous.Info{Rank: i, WorldSize: 2}, What: what}
				p.times.observe(e)
				p.observe(e)
			}
		}
		for i := range j.pacers {
			log := slog.New(slog.NewTextHandler(&logged[i], nil))
			records[i] = accounts.Create(dirs[i], 2, log)
			j.pacers[i] = &pacer{workers: paceHost{j, i}, caller: j, log: log, times: &timekeeper{log: records[i], starts: map[int]int{}}}
		}
		tell(agent.RanksAssigned{})
		tell(agent.WorkersStarted{})
		for i := range j.pacers {
			go j.pacers[i].run(ctx)
		}
		j.steps(150 * time.Second)
		if logged[0].Len() > 0 || logged[1].Len() > 0 || j.pacers[1].slow() != "" {
			t.Errorf("nobody is slow:\n%s%s", &logged[0], &logged[1])
		}
		j.late = 50 * time.Millisecond
		j.steps(400 * time.Second)
		const line = "rank 3 on host1 comes last in "
		for i, p := range j.pacers {
			if got := p.slow(); !strings.HasPrefix(got, line) || !strings.Contains(got, "; the others wait 4") {
				t.Errorf("host %d: %q", i, got)
			}
		}
		silence := func(silent bool) {
			j.mu.Lock()
			defer j.mu.Unlock()
			j.silent = silent
		}
		silence(true)
		j.steps(430 * time.Second) // what is known stays
		silence(false)
		j.late = 0
		j.steps(520 * time.Second)
		if got := j.pacers[1].slow(); got != "" {
			t.Errorf("rank 3 is slow no longer: %q", got)
		}
		for i := range logged {
			got := logged[i].String()
			if n := strings.Count(got, "\n"); n != 2 || !strings.Contains(got, `level=WARN msg="`+line) ||
				!strings.Contains(got, `level=WARN msg="the others no longer wait for rank 3 on host1" group=dp`) {
				t.Errorf("host %d, %d lines:\n%s", i, n, got)
			}
		}
		tell(agent.AttemptEnded{})
		end()
		synctest.Wait()
		for i, record := range records {
			record.Close(true)
			r, err := accounts.Read(dirs[i])
			if err != nil {
				t.Fatal(err)
			}
			if slow := accounts.NewReport("", []accounts.Run{{Record: *r}}).Slow; len(slow) != 1 || slow[0] != "rank 3 on host1" {
				t.Errorf("host %d: slow are %q", i, slow)
			}
			workers, _ := r.Sum(j.began.UnixMilli(), time.Now().UnixMilli())
			for local, spent := range workers {
				waited, late := float64(spent[accounts.Slow])/1000, 2*i+local == 3
				if late && waited != 0 || !late && (waited < 40 || waited > 100) || spent[accounts.Start] < 5000 || spent[accounts.Start] > 5200+int64(i)*3000 ||
					spent[accounts.Running] != 0 || spent.Sum() != time.Since(j.began).Milliseconds() {
					t.Errorf("host %d, worker %d: %v", i, local, spent)
				}
			}
		}
	})
}

// Of a host's clock the least uncertain measurement counts, and it ages.
func TestBetterOffset(t *testing.T) {
	now := time.Now()
	var o offset
	for _, tt := range []struct {
		name    string
		newer   offset
		ahead   int64
		certain int64
	}{
		{"the first", offset{5e6, 2e6, now}, 5e6, 2e6},
		{"a better one", offset{6e6, 1e5, now.Add(10 * time.Second)}, 6e6, 1e5},
		{"a busy host's", offset{9e7, 1e8, now.Add(20 * time.Second)}, 6e6, 1e5 + 10*drift},
		{"one as good as the best is now", offset{7e6, 1e5 + 20*drift, now.Add(30 * time.Second)}, 7e6, 1e5 + 20*drift},
	} {
		if o = o.better(tt.newer); o.ahead != tt.ahead || o.uncertain != tt.certain || !o.at.Equal(tt.newer.at) {
			t.Errorf("%s: %+v", tt.name, o)
		}
	}
}

// What another agent says of a slow rank is one clean line, told once, and only while workers run.
func TestPaceAnswer(t *testing.T) {
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	j := &paceJob{began: time.Now()}
	p := &pacer{workers: paceHost{j, 1}, log: log, times: &timekeeper{log: accounts.Create("", 2, log), starts: map[int]int{}}}
	claim, err := json.Marshal(&slow.Finding{Rank: 3, Host: "h\x1b[2J\nlevel=ERROR", Group: "dp\u202e", Share: 0.97, Steps: 200, Wait: 48e6, Step: 155e6})
	if err != nil {
		t.Fatal(err)
	}
	answer := func(request []byte) (part pacePart) {
		t.Helper()
		body, err := p.answer(t.Context(), request)
		if err = errors.Join(err, json.Unmarshal(body, &part)); err != nil {
			t.Error(err)
		}
		return part
	}
	if answer(claim); p.finding() != nil || logged.Len() > 0 {
		t.Errorf("before the workers run: %v, %s", p.finding(), &logged)
	}
	p.observe(agent.Event{Time: time.Now(), Round: &rendezvous.Info{Rank: 1, WorldSize: 2}, What: agent.WorkersStarted{}})
	for range 2 {
		if part := answer(claim); len(part.Arrivals) != 2 || part.Arrivals[1].Rank != 3 || part.Ended < part.Began {
			t.Errorf("%+v", part)
		}
	}
	got := logged.String()
	if strings.Count(got, "\n") != 1 || strings.ContainsAny(got, "\x1b\u202e") || !strings.Contains(got, "comes last in 97 % of the last 200 steps; the others wait 48 ms of 155 ms a step for it") {
		t.Errorf("%q", got)
	}
	if _, err := p.answer(t.Context(), []byte("boo")); err == nil {
		t.Error("nonsense is answered")
	}
	if answer([]byte("null")); p.slow() != "" || !strings.Contains(logged.String(), "the others no longer wait for rank 3") {
		t.Errorf("%q, %s", p.slow(), &logged)
	}
	answer(claim)
	p.observe(agent.Event{What: agent.AttemptEnded{}})
	if answer(claim); p.slow() != "" {
		t.Errorf("after the attempt: %q", p.slow())
	}
}

// Of two groups that each have a slow rank, the rank that is known stays; else the one for which others wait longer counts.
func TestPrefers(t *testing.T) {
	finding := func(rank int, wait time.Duration) *slow.Finding { return &slow.Finding{Rank: rank, Wait: wait} }
	for _, tt := range []struct {
		name      string
		now, f, g *slow.Finding
		want      bool
	}{
		{"none is known", nil, finding(1, 2), finding(2, 1), true},
		{"the same, less", nil, finding(1, 1), finding(2, 2), false},
		{"the one that is known", finding(1, 9), finding(1, 1), finding(2, 2), true},
		{"the other is", finding(2, 9), finding(1, 2), finding(2, 1), false},
		{"neither is any more", finding(3, 9), finding(1, 2), finding(2, 1), true},
		{"both are", finding(1, 9), finding(1, 2), finding(1, 1), true},
	} {
		if got := prefers(tt.now, tt.f, tt.g); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}
