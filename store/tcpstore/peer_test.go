package tcpstore_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/pypeer"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/storetest"
	"github.com/muster-run/muster/store/tcpstore"
)

// These tests have real PyTorch as the judge. They run with any release of
// PyTorch 2 that MUSTER_PYTHON names and leave out what it does not have.

// peer starts testdata/peer.py.
func peer(t *testing.T, ctx context.Context, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(ctx, pypeer.Python(t), append([]string{"testdata/peer.py"}, args...)...)
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=lo")
	cmd.Stderr = &bytes.Buffer{}
	return cmd
}

// ask runs peer.py and decodes the last line that it prints; some releases let
// gloo print others.
func ask(t *testing.T, result any, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := peer(t, ctx, args...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("peer.py %s: %v\n%s", args[0], err, cmd.Stderr)
	}
	out = bytes.TrimSpace(out)
	if err := json.Unmarshal(out[bytes.LastIndexByte(out, '\n')+1:], result); err != nil {
		t.Fatalf("peer.py %s: %v in %s", args[0], err, out)
	}
}

func port(s *tcpstore.Server) string { return strconv.Itoa(s.Port()) }

// TestPeerOrder has two real clients write and read one after the other. The requests are performed in
// that order, nearly always, by PyTorch's server as well.
func TestPeerOrder(t *testing.T) { ofBoth(t, testPeerOrder) }

func testPeerOrder(t *testing.T, open func(testing.TB) *tcpstore.Server) {
	const n = 1500
	var late []int
	ask(t, &late, "order", "127.0.0.1", port(open(t)), strconv.Itoa(n))
	t.Logf("of %d writes and %d reads, %d are in another order; with PyTorch's server %d", 2*n, 2*n, late[0], late[1])
	if late[0] > late[1]+2*n/50 {
		t.Errorf("of %d, %d are performed in another order, with PyTorch's server %d", 4*n, late[0], late[1])
	}
}

// TestPeerVectors has a real client make the calls of the vectors at our
// server, and compares what they return.
func TestPeerVectors(t *testing.T) { ofBoth(t, testPeerVectors) }

func testPeerVectors(t *testing.T, open func(testing.TB) *tcpstore.Server) {
	var got map[string]struct {
		Result any
		Error  string
	}
	ask(t, &got, "ops", "127.0.0.1", port(open(t)), port(open(t)))

	data, err := os.ReadFile("testdata/vectors-2.15.0-libuv.json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded struct {
		Vectors []struct {
			Name   string
			Result any    `json:"python_result"`
			Error  string `json:"python_error"`
		}
	}
	if err := json.Unmarshal(data, &recorded); err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, v := range recorded.Vectors {
		g, ok := got[v.Name]
		if !ok {
			if !strings.HasPrefix(v.Name, "connect") {
				t.Logf("this PyTorch has no %s", v.Name)
			}
			continue
		}
		compared++
		// Exceptions have other texts in other releases.
		if (g.Error == "") != (v.Error == "") {
			t.Errorf("%s: error %q, recorded %q", v.Name, g.Error, v.Error)
		}
		if diff := cmp.Diff(v.Result, g.Result); diff != "" {
			t.Errorf("%s (-recorded +got):\n%s", v.Name, diff)
		}
		if _, all := got["barrier_world_1"]; all && g.Error != v.Error {
			t.Errorf("%s: error %q, recorded %q", v.Name, g.Error, v.Error)
		}
	}
	if compared < 30 {
		t.Errorf("only %d calls were compared", compared)
	}
}

func TestPeerMore(t *testing.T) { ofBoth(t, testPeerMore) }

func testPeerMore(t *testing.T, open func(testing.TB) *tcpstore.Server) {
	var got string
	ask(t, &got, "more", "127.0.0.1", port(open(t)))
	if got != "ok" {
		t.Error(got)
	}
}

// TestPeerGroup has three processes reduce a tensor over gloo, meeting at our
// server.
func TestPeerGroup(t *testing.T) { ofBoth(t, testPeerGroup) }

func testPeerGroup(t *testing.T, open func(testing.TB) *tcpstore.Server) {
	const size = 3
	var all []struct {
		Sum      []float64
		Gathered []struct{ Rank int }
	}
	ask(t, &all, "group", "127.0.0.1", port(open(t)), strconv.Itoa(size))
	if len(all) != size {
		t.Errorf("results of %d processes", len(all))
	}
	for _, got := range all {
		if !slices.Equal(got.Sum, []float64{6, 6, 6}) || len(got.Gathered) != size || got.Gathered[2].Rank != 2 {
			t.Errorf("%+v", got)
		}
	}
}

// TestPeerWorkers counts real clients, and one of ours.
func TestPeerWorkers(t *testing.T) {
	pypeer.Python(t)
	s := listen(t)
	wait := make(chan error, 1)
	go func() { wait <- s.WaitForWorkers(t.Context(), 3) }()
	var got string
	ask(t, &got, "join", "127.0.0.1", port(s), "3")
	select {
	case err := <-wait:
		t.Fatalf("2 of 3 workers were enough: %v", err)
	default:
	}
	c, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: s.Addr().String(), WorldSize: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := <-wait; err != nil {
		t.Fatal(err)
	}
}

// A pyServers makes real servers, all in one process.
type pyServers struct {
	in  io.WriteCloser
	out *bufio.Reader
	has map[string]bool
	cmd *exec.Cmd
}

func startServers(t *testing.T, libuv bool) *pyServers {
	t.Helper()
	flag := "0"
	if libuv {
		flag = "1"
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := peer(t, ctx, "serve", flag)
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
	t.Cleanup(func() { cancel(); cmd.Wait() })
	p := &pyServers{in: in, out: bufio.NewReader(out), cmd: cmd}
	line, err := p.out.ReadString('\n')
	if err == nil {
		err = json.Unmarshal([]byte(line), &p.has)
	}
	if err != nil {
		cancel()
		cmd.Wait()
		t.Fatalf("no servers: %v: %s", err, cmd.Stderr)
	}
	return p
}

func (p *pyServers) open(t testing.TB) string {
	t.Helper()
	fmt.Fprintln(p.in, "open")
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strings.TrimSpace(line))
}

// TestPeerSession asks real servers for a session: they have none, say nothing,
// and continue as if nothing had been.
func TestPeerSession(t *testing.T) {
	for _, tt := range []struct {
		name  string
		libuv bool
	}{{"libuv", true}, {"legacy", false}} {
		t.Run(tt.name, func(t *testing.T) {
			p := startServers(t, tt.libuv)
			addr := p.open(t)
			c := dial(t, addr)
			if err := c.Set(t.Context(), "k", []byte("v")); err != nil {
				t.Fatal(err)
			}
			for range 20 {
				start := time.Now()
				_, err := tcpstore.DialSession(t.Context(), tcpstore.ClientConfig{Addr: addr, Logger: quiet}, "echo")
				if took := time.Since(start); !errors.Is(err, tcpstore.ErrNoSession) || took > patience {
					t.Errorf("after %v: %v", took, err)
				}
			}
			if p.has["list_keys"] {
				if keys, err := c.ListKeys(t.Context()); err != nil || !slices.Equal(keys, []string{"k"}) {
					t.Errorf("keys %q, %v", keys, err)
				}
			}
			if got, err := c.Get(t.Context(), "k"); string(got) != "v" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
			p.in.Close()
			if err := p.cmd.Wait(); err != nil {
				t.Error(err)
			}
			if text := p.cmd.Stderr.(*bytes.Buffer).String(); text != "" {
				t.Errorf("the server says: %s", text)
			}
		})
	}
}

// TestPeerRounds has real clients of a relay wait while the store behind it is replaced, and
// then lost. What they wait for ends at once with an error, and they continue.
func TestPeerRounds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s := following(t)
	cmd := peer(t, ctx, "rounds", "127.0.0.1", port(s))
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
	defer cmd.Wait()
	defer cancel()
	lines := bufio.NewScanner(out)
	next := func() string {
		t.Helper()
		if !lines.Scan() {
			cmd.Wait()
			t.Fatalf("peer.py rounds ended: %s", cmd.Stderr)
		}
		return lines.Text()
	}
	for _, dialShared := range []func(context.Context) (net.Conn, error){
		to(t, tcpstore.NewShared()),
		func(context.Context) (net.Conn, error) { return nil, store.ErrClosed },
	} {
		if line := next(); line != "blocked" {
			t.Fatal(line)
		}
		awaitWaiting(t, s, 4)
		_ = s.Follow(t.Context(), dialShared)
		fmt.Fprintln(in, "go")
	}
	if line := next(); line != "held" {
		t.Fatal(line)
	}
	follow(t, s, to(t, tcpstore.NewShared()))
	var got [2]map[string]string
	if err := json.Unmarshal([]byte(next()), &got); err != nil {
		t.Fatal(err)
	}
	const ended = "DistStoreError: Stop_waiting response is expected"
	const none = "ValueError: cannot create std::vector larger than max_size()"
	want := [2]map[string]string{{"get": ended, "wait": ended, "pop": ended, "barrier": ended}, {
		"get": ended, "wait": ended, "pop": ended, "barrier": ended,
		"then get": ended, "then wait": ended, "then check": "DistStoreError: ready or not_ready response expected", "then multi_get": ended,
		"then compare_set": none, "then pop": none, "then add": "1", "later": "b'x'",
	}}
	for i := range 5 {
		n := strconv.Itoa(i)
		want[0]["add"+n], want[0]["old"+n], want[0]["get"+n] = strconv.Itoa(i+1), "False", "b'v'"
		want[0]["timeout"+n] = "DistStoreError: wait timeout after 20ms, keys: /never"
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestPeerMirror has a real client read and write a mirrored key, with sessions
// on the same server.
func TestPeerMirror(t *testing.T) {
	s, log := listenLogged(t)
	s.HandleSession("echo", echo)
	m := &mirror{value: "from the mirror"}
	s.Mirror("k", m)
	conn := session(t, s.Addr().String(), "echo")
	exchange(t, conn, "before\n")
	var got []string
	ask(t, &got, "mirror", "127.0.0.1", port(s), "k")
	want := []string{"from the mirror", "from the mirror", "swapped", "swapped", "12", "12", "", "True", "last"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a real client sees (-want +got):\n%s", diff)
	}
	if m.value != "last" || m.adopts != 5 {
		t.Errorf("the mirror has %q and was told %d times", m.value, m.adopts)
	}
	exchange(t, conn, "after\n")
	if text := log.String(); text != "" {
		t.Errorf("the server says: %s", text)
	}
}

// TestPeerServers runs the suite through our client on real servers.
func TestPeerServers(t *testing.T) {
	for _, tt := range []struct {
		name  string
		libuv bool
	}{{"libuv", true}, {"legacy", false}} {
		t.Run(tt.name, func(t *testing.T) {
			p := startServers(t, tt.libuv)
			storetest.Run(t, storetest.Subject{
				Open: func(t testing.TB, n int) []store.Store {
					addr := p.open(t)
					all := make([]store.Store, n)
					for i := range all {
						all[i] = dial(t, addr)
					}
					return all
				},
				NoQueues:    !tt.libuv || !p.has["queue_push"],
				NoSwapWakes: !tt.libuv,
				NoAppend:    !p.has["append"] || !p.has["multi_get"],
				NoBarrier:   !p.has["barrier"],
				NoListKeys:  !p.has["list_keys"],
				Histories:   5,
			})
		})
	}
}

// TestPeerOld has a client of PyTorch 1.13 refused, with a log line that says
// what it is. MUSTER_PYTHON_113 names an interpreter that has that release.
func TestPeerOld(t *testing.T) {
	python := os.Getenv("MUSTER_PYTHON_113")
	if python == "" {
		t.Skip("MUSTER_PYTHON_113 names no interpreter with PyTorch 1.13")
	}
	for _, size := range []string{"0", "2"} {
		s, log := listenLogged(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		out, err := exec.CommandContext(ctx, python, "testdata/old.py", "127.0.0.1", port(s), size).CombinedOutput()
		cancel()
		if err != nil || !bytes.Contains(out, []byte("refused:")) {
			t.Errorf("world size %s: %v: %s", size, err, out)
		}
		s.Close()
		if text := log.String(); !strings.Contains(text, "PyTorch 1.x") {
			t.Errorf("world size %s: the log does not say why: %s", size, text)
		}
	}
}
