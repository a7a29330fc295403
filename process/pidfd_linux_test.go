package process_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/process"
)

// Where a kernel or a sandbox refuses pidfds in part, workers start, end with their
// own status, and leave nothing behind.
func TestPidfdsRefused(t *testing.T) {
	const own = "0: 0\n1: 3\n"
	for _, tt := range []struct {
		name  string
		calls []testproc.Call
		want  string
	}{
		{"all", testproc.NoPidfds(), own},
		{"clone", []testproc.Call{testproc.NoPidfdClone, testproc.NoClone3}, own}, // gVisor
		{"pidfd_open", []testproc.Call{testproc.NoPidfdOpen}, own},
		{"waitid", []testproc.Call{testproc.NoPidfdWait}, own}, // Linux 5.3
		{"pidfd_send_signal", []testproc.Call{testproc.NoPidfdSignal}, own},
		// Nobody says how a worker ended; that is not a success.
		{"waitid altogether", []testproc.Call{{Number: unix.SYS_WAITID, Errno: unix.ENOSYS}}, "0: 255\n1: 255\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			lab := testproc.New(t)
			p := program(t, lab, "endings", "spawn:setsid:ignore:15|hang", "exit:3")
			p.Path, p.Args = testproc.Program(), slices.Concat(testproc.Refuse(tt.calls...), p.Args)
			p.Stdout = nil
			got, err := p.Output()
			if err != nil || string(got) != tt.want {
				t.Errorf("%v, output\n%swant\n%s", err, got, tt.want)
			}
		})
	}
}

// The end of a worker that somebody traces is seen by the tracer first. It does not
// count as anything before its parent has seen it.
func TestTraced(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	cfg := workers(lab, do("say:up", "in", "exit:3"))
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	cfg.Stdin = in
	g := start(t, s, cfg)
	pid := lab.PID("up")
	tracer := exec.Command(testproc.Program(), testproc.Args(fmt.Sprintf("seize:%d", pid))...)
	tracer.Env = lab.Env()
	if err := tracer.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tracer.Wait(); err != nil {
			t.Error("the tracer:", err)
		}
	}()
	if line := lab.Line(); line != "seized" {
		t.Fatalf("board: %q", line)
	}
	out.Close()
	if lines := lab.Lines(2); lines[1] != "over" {
		t.Fatalf("board: %q", lines)
	}
	select {
	case exit := <-g.Failed():
		t.Errorf("it counts as ended with %d while its tracer holds it", exit.Code)
	default:
	}
	lab.OpenGate()
	if r := wait(t, g); r.Exits[0].Code != 3 {
		t.Errorf("code %d, want 3", r.Exits[0].Code)
	}
}
