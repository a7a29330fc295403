package cli

import (
	"bufio"
	"errors"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/muster-run/muster/cmd/muster/internal/console"
)

// A store serves until it is told to stop, which is not a failure.
func TestStoreStopsOnSignal(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		cmd := exec.Command(os.Args[0], "store", "--host", "127.0.0.1", "--port", "0")
		cmd.Args[0] = "muster" // see TestMain
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil || !strings.HasPrefix(line, "listening on 127.0.0.1:") {
			t.Errorf("it said %q (%v)", line, err)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("after %v: %v", sig, err)
		}
	}
}

// A port that is in use is reported with what to do about it.
func TestPortInUse(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "address already in use [M]\nhint: name another --master-port or --rdzv-endpoint, or neither for a free port\n"},
		{[]string{"--nnodes", "2"}, "address already in use; another agent of this job with node rank 0 may be on this host: give each agent its own --node-rank; " +
			"otherwise name another --master-port or --rdzv-endpoint, the same for all agents [M]\n"},
		{[]string{"--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:" + port, "--rdzv-conf", "is_host=true"},
			"address already in use [M]\nhint: name another --master-port or --rdzv-endpoint, the same for all agents\n"},
	} {
		cmd := exec.Command(os.Args[0], append(append([]string{"run", "--master-port", port}, tt.args...), "--no-python", "true")...)
		cmd.Args[0] = "muster"
		out, err := cmd.CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != console.ExitError {
			t.Errorf("%q: it ended with %v, want status 1", tt.args, err)
		}
		if text := regexp.MustCompile(`\[M\d+\]`).ReplaceAllString(string(out), "[M]"); !strings.Contains(text, "127.0.0.1:"+port) || !strings.Contains(text, tt.want) {
			t.Errorf("%q: it said %s, want %q", tt.args, text, tt.want)
		}
	}
}
