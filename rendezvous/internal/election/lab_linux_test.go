package election_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/wire/pipe"
	"github.com/muster-run/muster/rendezvous/internal/election"
)

// patience bounds each wait of a test.
const patience = 5 * time.Minute

// proc is a process with lines in and out.
type proc struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	over  chan struct{} // closed once it has ended
}

// spawn starts a program with a first line, and ends it with the test.
func spawn(t *testing.T, cmd *exec.Cmd, first any) *proc {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &proc{t: t, cmd: cmd, in: in, lines: make(chan string, 1000), over: make(chan struct{})}
	go func() {
		defer close(p.over)
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
		_ = cmd.Wait()
	}()
	t.Cleanup(p.kill)
	if err := json.NewEncoder(in).Encode(first); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *proc) kill() {
	_ = p.cmd.Process.Kill()
	<-p.over
}

// expect reads lines up to one that has text in it, and returns that.
func (p *proc) expect(text string) string {
	p.t.Helper()
	deadline := time.After(patience)
	last := ""
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("%s ended, want %q from it; it said last: %s", p.cmd.Path, text, last)
			}
			if strings.Contains(line, text) {
				return line
			}
			last = line
		case <-deadline:
			p.t.Fatalf("no %q from %s", text, p.cmd.Path)
		}
	}
}

// ask gives the process a line and returns its answer.
func (p *proc) ask(line string) string {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		p.t.Fatal(err)
	}
	word, _, _ := strings.Cut(line, " ")
	return p.expect(word)
}

func wait[T any](t *testing.T, c <-chan T, what string) (got T) {
	t.Helper()
	select {
	case got = <-c:
	case <-time.After(patience):
		t.Fatalf("waited %v for %s", patience, what)
	}
	return got
}

// A lab is a quorum of three members and agents that elect through it.
type lab struct {
	t       *testing.T
	names   []string // of the members
	members []*proc
	data    string // the members' directory; empty for temporary ones
	tmp     string // where those are
}

// newNames makes hosts out of loopback addresses that no other test has.
func newNames(n int) []string {
	a, b := 1+rand.IntN(250), 1+rand.IntN(250)
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("127.%d.%d.%d:29400", a, b, i+1)
	}
	return names
}

// newLab starts a quorum of n members and waits until it serves.
func newLab(t *testing.T, n int, data string) *lab {
	t.Helper()
	l := &lab{t: t, names: newNames(n), members: make([]*proc, n), data: data, tmp: t.TempDir()}
	for i := range l.members {
		l.start(i)
	}
	for _, m := range l.members {
		m.expect(`"ready":true`)
	}
	return l
}

// start starts a member, again or for the first time.
func (l *lab) start(i int) *proc {
	l.t.Helper()
	bind, _, _ := net.SplitHostPort(l.names[i])
	cmd := exec.Command(muster, "serve")
	cmd.Env = append(os.Environ(), "TMPDIR="+l.tmp)
	l.members[i] = spawn(l.t, cmd,
		&pipe.Serve{RunID: "job", Name: l.names[i], Members: l.names, Bind: bind, DataDir: l.data, TTL: pipe.Millis(l.config(0).TTL)})
	return l.members[i]
}

// client looks into the cluster.
func (l *lab) client() *proc {
	l.t.Helper()
	p := spawn(l.t, exec.Command(etcd), map[string]any{"endpoints": l.names})
	p.expect("ready")
	return p
}

// agent is an Election with what it says it waits for.
type agent struct {
	*election.Election
	t       *testing.T
	waiting chan string
	logged  chan string
	all     strings.Builder // what was logged, for a test that fails; the logger writes one line at a time
}

// Write takes a line of the log.
func (a *agent) Write(line []byte) (int, error) {
	a.all.Write(line)
	a.logged <- string(line)
	return len(line), nil
}

// waitMember waits until the agent's member serves, again.
func (a *agent) waitMember() {
	a.t.Helper()
	for !strings.Contains(wait(a.t, a.logged, "a member that serves"), "member of the quorum serves") {
	}
}

// config is that of the agent with a number. On a busy machine a lease of a few seconds
// may run out before it can be prolonged.
func (l *lab) config(i int) election.Config {
	return election.Config{
		Elect:   pipe.Elect{RunID: "job", Addr: fmt.Sprintf("host%d:29400", i), Endpoints: l.names, TTL: pipe.Millis(10 * time.Second)},
		Program: muster,
	}
}

// agent starts one.
func (l *lab) agent(i int) *agent {
	l.t.Helper()
	return startAgent(l.t, l.config(i))
}

func startAgent(t *testing.T, cfg election.Config) *agent {
	t.Helper()
	a := &agent{t: t, waiting: make(chan string, 1000), logged: make(chan string, 10000)}
	cfg.Logger = slog.New(slog.NewTextHandler(a, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cfg.OnWaiting = func(text string) { a.waiting <- text }
	e, err := election.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	a.Election = e
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = e.Close(ctx, false) // nobody logs after it
		if t.Failed() {
			t.Logf("the log of %s:\n%s", cfg.Elect.Addr, &a.all)
		}
	})
	return a
}

// leader waits for one.
func (a *agent) leader() pipe.Leader {
	a.t.Helper()
	l, err := a.tryLeader()
	if err != nil {
		a.t.Fatalf("Leader: %v", err)
	}
	return l
}

func (a *agent) tryLeader() (pipe.Leader, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errors.New("the test lost patience"))
	defer cancel()
	return a.Leader(ctx)
}

// waits reads what the agent waits for up to a text with words in it.
func (a *agent) waits(words ...string) string {
	a.t.Helper()
	for {
		text := wait(a.t, a.waiting, fmt.Sprintf("a text with %q", words))
		missing := false
		for _, w := range words {
			missing = missing || !strings.Contains(text, w)
		}
		if !missing {
			return text
		}
	}
}

// agree checks that all agents come to know one leader, and that one of them is it.
func agree(t *testing.T, agents ...*agent) (leader *agent, others []*agent) {
	t.Helper()
	var want pipe.Leader
	for _, a := range agents {
		if got := a.leader(); got.Term > want.Term {
			want = got
		}
	}
	for _, a := range agents {
		got := a.leader()
		for got.Term < want.Term { // it has not heard yet
			wait(t, a.Lost(got.Term), "the loss of a leader")
			got = a.leader()
		}
		if got.Addr != want.Addr || got.Term != want.Term {
			t.Errorf("one agent has the leader %+v, another %+v", got, want)
		}
		switch {
		case !got.Mine:
			others = append(others, a)
		case leader != nil:
			t.Errorf("two agents lead term %d", got.Term)
		default:
			leader = a
		}
	}
	if leader == nil {
		t.Fatalf("nobody leads, all have %+v", want)
	}
	return leader, others
}

// closeNow closes an agent's election and wants no error.
func (a *agent) closeNow(done bool) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := a.Close(ctx, done); err != nil {
		a.t.Errorf("Close(done=%v): %v", done, err)
	}
}
