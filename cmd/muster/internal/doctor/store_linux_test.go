package doctor_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/cmd/muster/internal/doctor"
	"github.com/muster-run/muster/internal/test/netlab"
	"github.com/muster-run/muster/internal/test/pypeer"
	"github.com/muster-run/muster/internal/test/testcert"
)

// serve starts a program on a host, waits for its first line, and ends it with the
// test.
func (s *site) serve(host int, words ...string) {
	s.t.Helper()
	cmd := s.lab.Host(host).Command(context.Background(), words[0], words[1:]...)
	cmd.Env = s.env
	if _, err := cmd.StdinPipe(); err != nil { // some serve until it ends
		s.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { stop(cmd, out) })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.HasPrefix(line, "listening") {
		s.t.Fatalf("%v: got %q, %v", words, line, err)
	}
}

func stop(cmd *netlab.Cmd, out io.Reader) {
	_ = cmd.Process.Signal(unix.SIGTERM)
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
}

// Where a store is at the endpoint for good, hosts meet there time and again.
func TestMeetAtStore(t *testing.T) {
	s := newSite(t, 3)
	s.serve(2, self(t), "muster", "store", "--port=29400")
	for range 3 {
		r0, r1 := s.both(nil, nil, "--nnodes=2", "--rdzv-endpoint=host2:29400")
		for _, r := range []doctor.Report{r0, r1} {
			expect(t, r, doctor.OK, "endpoint", `^host2:29400 can be reached .*: a muster store or agent answers$`, "")
			expect(t, r, doctor.OK, "meeting", `^2 hosts met at host2:29400: `, "")
			expectOnly(t, r)
		}
	}
}

// Hosts with the job's token meet; one without it is told what it lacks.
func TestMeetWithAToken(t *testing.T) {
	s := newSite(t, 2)
	token := []string{"MUSTER_TOKEN=" + strings.Repeat("t", 32)}
	r0, r1 := s.both(token, token, "--nnodes=2", "--rdzv-endpoint=host0:29400")
	for _, r := range []doctor.Report{r0, r1} {
		expect(t, r, doctor.OK, "meeting", `^2 hosts met at host0:29400: `, "")
		expectOnly(t, r)
	}
	expect(t, r1, doctor.OK, "endpoint", `: a muster store or agent answers$`, "")
	_, r1 = s.both(token, nil, "--nnodes=2", "--rdzv-endpoint=host0:29400", "--wait=5")
	expect(t, r1, doctor.Failure, "meeting", `takes only agents of its job.*give this agent what the others have`, "")
	expectOnly(t, r1, "meeting")
}

// Hosts with the job's certificates meet.
func TestMeetByTLS(t *testing.T) {
	s := newSite(t, 2)
	ca := testcert.New(t)
	cert, key := ca.Issue()
	r0, r1 := s.both(nil, nil, "--nnodes=2", "--rdzv-endpoint=host0:29400", "--rdzv-conf=cacert="+ca.File+",cert="+cert+",key="+key)
	for _, r := range []doctor.Report{r0, r1} {
		expect(t, r, doctor.OK, "meeting", `^2 hosts met at host0:29400: `, "")
		expectOnly(t, r)
	}
}

// PyTorch's own store will do.
func TestMeetAtTorchStore(t *testing.T) {
	python := pypeer.Python(t)
	s := newSite(t, 3)
	s.serve(2, python, "../../../../store/tcpstore/testdata/torchstore.py", "0.0.0.0", "29400")
	for range 2 {
		r0, r1 := s.both(nil, nil, "--nnodes=2", "--rdzv-endpoint=10.77.0.13:29400")
		for _, r := range []doctor.Report{r0, r1} {
			expect(t, r, doctor.OK, "endpoint", `: a TCPStore answers, PyTorch's or one without a rendezvous$`, "")
			expect(t, r, doctor.OK, "meeting", `^2 hosts met at 10.77.0.13:29400: `, "")
			expectOnly(t, r)
		}
	}
}

// A job of one host with an endpoint elsewhere is told what answers there.
func TestWhatAnswers(t *testing.T) {
	s := newSite(t, 2)
	r := s.doctor(0, nil, "--rdzv-endpoint=10.77.0.12:29400").report()
	expect(t, r, doctor.Warning, "endpoint", `^10.77.0.12:29400: refused`, "still to be started")
	s.serve(1, self(t), "guest", "hold", ":29400")
	r = s.doctor(0, nil, "--rdzv-endpoint=10.77.0.12:29400").report()
	expect(t, r, doctor.Failure, "endpoint", `web server`, "choose another port")
	silent := listenSilently(t, s.lab.Host(1))
	defer silent.Close()
	r = s.doctor(0, nil, "--rdzv-endpoint=10.77.0.12:29401").report()
	expect(t, r, doctor.Failure, "endpoint", `which is not a TCPStore$`, "choose another port")
}

// listenSilently takes connections at port 29401, in the kernel, and says nothing.
func listenSilently(t *testing.T, h *netlab.Host) net.Listener {
	t.Helper()
	var l net.Listener
	if err := h.Do(func() (err error) { l, err = net.Listen("tcp", "0.0.0.0:29401"); return err }); err != nil {
		t.Fatal(err)
	}
	return l
}

// The real interpreter with the real torch says what the probe asks.
func TestRealTorch(t *testing.T) {
	t.Parallel()
	python := pypeer.Python(t)
	report := doctor.Run(t.Context(), doctor.Config{MinNodes: 1, MaxNodes: 1, Workers: doctor.Workers{Count: 1}, Python: doctor.Python{Path: python}, LogDir: os.DevNull})
	out, err := exec.Command(python, "-c", "import torch; print(torch.__version__)").Output()
	if err != nil {
		t.Fatal(err)
	}
	expect(t, *report, doctor.OK, "Python", `^3\.\d+\.\d+ at `+python, "")
	version := regexp.QuoteMeta(strings.TrimSpace(string(out)))
	if has(*report, doctor.Warning, "torch", `^torch `+version+` took \S+ to import$`, "local disk") ||
		has(*report, doctor.Failure, "torch", `^cannot be imported: importing it took more than `, "local disk") {
		t.Log("the machine is busy") // what else is there is not said then
		return
	}
	expect(t, *report, doctor.OK, "torch", "^"+version+" for .*, imported in .*; backends gloo", "")
}
