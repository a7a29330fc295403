//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/internal/test/testproc"
)

// A prober asks an agent over and over whether it is alive, as a kubelet does.
type prober struct {
	t      *testing.T
	client http.Client
	stop   chan struct{}
	done   chan struct{}
	probes int
	worst  time.Duration
}

// probe begins to ask the agent at a Unix socket once it answers for the first time.
func probe(t *testing.T, socket string) *prober {
	t.Helper()
	p := &prober{t: t, stop: make(chan struct{}), done: make(chan struct{})}
	p.client.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(p.client.CloseIdleConnections)
	for deadline := time.Now().Add(patience); ; {
		if status, _ := p.get("/healthz", patience); status == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the agent does not answer")
		}
	}
	go p.run()
	return p
}

// get returns the status, 0 if there was no answer in time.
func (p *prober) get(path string, timeout time.Duration) (int, string) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://muster"+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	r, err := p.client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, err.Error()
	}
	return r.StatusCode, string(body)
}

func (p *prober) run() {
	defer close(p.done)
	for {
		began := time.Now()
		status, body := p.get("/healthz", patience)
		select {
		case <-p.stop:
			return
		default:
		}
		if status != http.StatusOK {
			p.t.Errorf("probe %d: status %d: %s", p.probes, status, body)
			return
		}
		p.probes++
		p.worst = max(p.worst, time.Since(began))
	}
}

// end stops asking. Every answer before was that the agent is alive.
func (p *prober) end() {
	p.t.Helper()
	close(p.stop)
	<-p.done
	p.t.Logf("%d probes, all alive, the slowest took %v", p.probes, p.worst)
}

// phase waits until the agent is in a phase, and ready or not.
func (p *prober) phase(want jobstate.Phase, ready bool) *jobstate.State {
	p.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		status, body := p.get("/v1/state?scope=host", patience)
		var s jobstate.State
		if err := json.Unmarshal([]byte(body), &s); status == http.StatusOK && err != nil {
			p.t.Fatalf("%v: %s", err, body)
		}
		isReady, why := p.get("/readyz", patience)
		if s.Job.Phase == want && (isReady == http.StatusOK) == ready {
			return &s
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("the phase is %q, readiness %d (%s), want %q, %v", s.Job.Phase, isReady, why, want, ready)
		}
	}
}

// An agent is alive in every phase of its job, ready only while its workers run.
func TestProbes(t *testing.T) {
	t.Parallel()
	flags := "--nnodes 2 --nproc-per-node 1 --max-restarts 1 --rdzv-backend c10d --rdzv-id probes --rdzv-endpoint 127.0.0.1:" + strconv.Itoa(freePort(t))
	steps := []string{"report:ready $RANK in $TORCHELASTIC_RESTART_COUNT", "a0:gate", "a0:exit:3"}
	socket := filepath.Join(t.TempDir(), "health")
	first := workers(t, muster(t), setup{env: []string{testproc.Unpaused}}, flags+" --health-addr unix:"+socket, append(steps, "exit:0")...)
	p := probe(t, socket)
	if s := p.phase("rendezvous", false); s.Job.MinHosts != 2 || s.Job.RunID != "probes" {
		t.Errorf("the job is %+v", s.Job)
	}

	// The other host's worker does not end in attempt 1.
	s := setup{env: testproc.Env(first.board.Board, first.gate, "")}
	workers(t, muster(t), s, flags, append(steps, "hang")...)
	first.await("ready 0 in 0", "ready 1 in 0")
	running := p.phase("running", true)
	if len(running.Workers) != 1 || len(running.Hosts) != 2 || running.Job.State != "HEALTHY" {
		t.Errorf("state is %+v", running)
	}
	first.gate.Open()
	first.await("ready 0 in 1", "ready 1 in 1")
	restarted := p.phase("exit barrier", false)
	if restarted.Job.Restarts != 1 || len(restarted.Failures) == 0 {
		t.Errorf("state is %+v", restarted)
	}
	p.end()

	// Stopped, it answers nobody: whoever asks gives up.
	first.signal(syscall.SIGSTOP)
	if err := awaitStop(first.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if status, body := p.get("/healthz", time.Second); status != 0 {
		t.Errorf("a stopped agent answers %d: %s", status, body)
	}
	first.signal(syscall.SIGCONT)
	if status, body := p.get("/healthz", patience); status != http.StatusOK {
		t.Errorf("an agent that goes on answers %d: %s", status, body)
	}
}

// awaitStop waits until the last thread of a child has stopped.
func awaitStop(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return err
		}
	}
}

// A port that cannot be served is no reason not to run the job.
func TestHealthPortRefused(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for _, tt := range []struct{ name, value, says string }{
		{"in use", port, "address already in use"},
		{"no number", "http", "TORCHELASTIC_HEALTH_CHECK_PORT is not a port"},
		{"too large", "65536", "TORCHELASTIC_HEALTH_CHECK_PORT is not a port"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			j := workers(t, muster(t), setup{env: []string{"TORCHELASTIC_HEALTH_CHECK_PORT=" + tt.value}}, "--standalone", "exit:0")
			j.want(0).says("the job's health is not served", tt.says)
		})
	}
}
