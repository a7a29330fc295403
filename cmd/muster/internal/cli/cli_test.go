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
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/rendezvous"
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
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != exitError {
			t.Errorf("%q: it ended with %v, want status 1", tt.args, err)
		}
		if text := regexp.MustCompile(`\[M\d+\]`).ReplaceAllString(string(out), "[M]"); !strings.Contains(text, "127.0.0.1:"+port) || !strings.Contains(text, tt.want) {
			t.Errorf("%q: it said %s, want %q", tt.args, text, tt.want)
		}
	}
}

func TestSplit(t *testing.T) {
	a, b, c := errors.New("a"), errors.New("b"), errors.New("c")
	got := split(&launch.ConfigError{Err: errors.Join(a, errors.Join(b, nil, c))})
	if diff := cmp.Diff([]string{"a", "b", "c"}, texts(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := split(nil); got != nil {
		t.Errorf("split(nil) = %v", got)
	}
}

func texts(errs []error) []string {
	var list []string
	for _, err := range errs {
		list = append(list, err.Error())
	}
	return list
}

// Where hosts are missing at the end of the wait the user hears what to do there. A run ID that nobody gave
// is not named.
func TestHostsMissing(t *testing.T) {
	const hint = "hint: start muster on the missing hosts with the same --rdzv-endpoint and --rdzv-id; run muster doctor on each host " +
		"to see what keeps them apart\n"
	for _, tt := range []struct{ runID, want string }{
		{"none", "error: rendezvous: join timed out after 7s: 1 of 2 nodes have joined (vm) [M1237]\n" + hint},
		{"job7", "error: rendezvous of run \"job7\": join timed out after 7s: 1 of 2 nodes have joined (vm) [M1147]\n" + hint},
	} {
		var out strings.Builder
		err := &rendezvous.TimeoutError{RunID: tt.runID, Phase: "join", After: 7 * time.Second,
			Waiting: rendezvous.Waiting{Joined: 1, MinNodes: 2, MaxNodes: 2, Known: []string{"vm"}}}
		if complain(&out, false, []error{advise(err, launch.Config{})}, ""); out.String() != tt.want {
			t.Errorf("got %s, want %s", out.String(), tt.want)
		}
	}
}
