package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
)

// onLoopback is a doctor whose host has no address but that of the loopback interface.
func onLoopback(name string, ahead time.Duration) *doctor {
	s := Real()
	s.Now = func() time.Time { return time.Now().Add(ahead) }
	s.Lookup = func(string) (string, bool) { return "", false }
	s.LookupHost = func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("no names here") }
	return &doctor{Config: Config{System: s, LocalAddr: "127.0.0.1", Host: "h", Port: 29400, MinNodes: 2, MaxNodes: 2, Wait: time.Second,
		Logger: slog.New(slog.DiscardHandler)}, hostname: name, ifaces: []Interface{{Name: "lo", MTU: 65536, Up: true, Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}}}
}

// examined has some doctors meet in one store.
func examined(t *testing.T, meeting store.Store, doctors ...*doctor) [][]Line {
	t.Helper()
	found := make([][]Line, len(doctors))
	var all sync.WaitGroup
	for i, d := range doctors {
		all.Go(func() {
			s := &session{d: d, store: meeting, rank: i, size: len(doctors)}
			lines, err := s.examine(t.Context())
			if err != nil {
				t.Error(err)
			}
			found[i] = lines
		})
	}
	all.Wait()
	return found
}

// All hosts that meet come to the same verdict, and leave nothing but that they are done.
func TestMeetingOfThree(t *testing.T) {
	meeting := store.NewMemory()
	found := examined(t, meeting, onLoopback("a", 0), onLoopback("b", time.Hour), onLoopback("c", 0))
	for i := range found {
		begins(t, fmt.Sprint("host ", i), found[i], []string{
			"meeting ok: 3 hosts met at h:29400: a (127.0.0.1), b (127.0.0.1), c (127.0.0.1)",
			"connections ok: all hosts reach each other in both directions; the longest round trip is ",
			"MTU ok: 1 MiB passes between all hosts",
			"clocks failure: the clock of b is 1h0m0s ahead of those of most hosts: keep-alives of torch's agents look dead"})
	}
	for _, key := range []string{"host.0", "host.1", "host.2", "result.0", "result.1", "result.2"} {
		if there, err := meeting.Check(t.Context(), key); there || err != nil {
			t.Errorf("%s is left, %v", key, err)
		}
	}
}

// Another host may say anything: a doctor of another version, or none at all.
func TestMeetingOfAStranger(t *testing.T) {
	good := `{"name": "b", "port": 1, "token": "-", "addrs": [{"addr": "127.0.0.1"}]}`
	for _, tt := range []struct {
		name, host, result string
		want               []string
		err                string
	}{
		{"no JSON", "boo", `{}`, []string{"meeting ok: 2 hosts met at h:29400: a (127.0.0.1)", "meeting failure: the meeting has lost contact with a host (no. 1)"}, ""},
		{"too much", `{"name": "` + strings.Repeat("x", maxSaid) + `"}`, `{}`, []string{"meeting ok: ", "meeting failure: the meeting has lost contact with a host (no. 1)"}, ""},
		{"no address", `{"name": "b\u001b[2J"}`, `{}`, nil, `"b\x1b[2J" has told no address of its own; does it run another version of muster?`},
		{"null", `null`, `{}`, nil, `"" has told no address of its own; does it run another version of muster?`},
		{"findings of nobody", good, `{"findings": [{"to": 99}, {"to": -1}, {"to": 1}, {"to": 0, "place": 7, "problem": "\u001b[31mno way"}]}`, []string{
			"meeting ok: 2 hosts met at h:29400: a (127.0.0.1), b (127.0.0.1)",
			"connections failure: a cannot reach b at 127.0.0.1: refused (nothing listens there, or a firewall rejects it)"}, ""},
		{"findings of another kind", good, `{"findings": "none"}`, []string{
			"meeting ok: 2 hosts met at h:29400: a (127.0.0.1), b (127.0.0.1)", "meeting failure: the meeting has lost contact with b → see what doctor says there",
			"connections failure: a cannot reach b at 127.0.0.1: refused (nothing listens there, or a firewall rejects it)"}, ""},
	} {
		meeting := store.NewMemory()
		for key, said := range map[string]string{"host.1": tt.host, "result.1": tt.result, "done.1": "1"} {
			if err := meeting.Set(t.Context(), key, []byte(said)); err != nil {
				t.Fatal(err)
			}
		}
		lines, err := (&session{d: onLoopback("a", 0), store: meeting, size: 2}).examine(t.Context())
		if text := fmt.Sprint(err); (tt.err != "" || err != nil) && text != tt.err {
			t.Errorf("%s: %s, want %q", tt.name, text, tt.err)
		}
		begins(t, tt.name, lines, tt.want)
	}
}

// A host that says nothing is waited for as long as it may take, and no longer; what the others say counts.
func TestSilentHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		meeting := store.NewMemory()
		s := &session{store: meeting, size: 3}
		for key, said := range map[string]string{"host.0": `{"name": "a"}`, "host.2": `{"name": "c"}`} {
			if err := meeting.Set(t.Context(), key, []byte(said)); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		hosts := get[hostInfo](t.Context(), s, "host", exchange)
		if hosts[0] == nil || hosts[1] != nil || hosts[2] == nil || hosts[2].Name != "c" || time.Since(began) != exchange {
			t.Errorf("%v after %v", hosts, time.Since(began))
		}
	})
}

// A meeting whose store ends with its host says so, and what the hosts were about to do.
func TestMeetingIsLost(t *testing.T) {
	lines, err := (&session{d: onLoopback("a", 0), store: endedStore{}, size: 2}).examine(t.Context())
	if !errors.Is(err, store.ErrClosed) || lines != nil {
		t.Errorf("%v, %v", lines, err)
	}
	d := onLoopback("a", 0)
	d.Backend, d.Members = "zookeeper", []string{"z:1"}
	begins(t, "a backend that is not known", d.meet(t.Context()), []string{` failure: rendezvous backend "zookeeper" is not known`})
}

// An endedStore has ended.
type endedStore struct{ store.Store }

func (endedStore) Set(context.Context, string, []byte) error { return store.ErrClosed }

// Who came is told where not all did, with what this host has waited for.
func TestUnmet(t *testing.T) {
	d := onLoopback("a", 0)
	late := func(w rendezvous.Waiting) error { return fmt.Errorf("join: %w", &rendezvous.TimeoutError{Waiting: w}) }
	const fix = " → run `muster doctor` with the same options on every host"
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"one came", late(rendezvous.Waiting{Joined: 1, MinNodes: 3, MaxNodes: 3, Known: []string{"a"}}), " failure: 1 of 3 hosts came to h:29400 (a) within 1s" + fix},
		{"it is not known which", late(rendezvous.Waiting{Joined: 2, MinNodes: 3, MaxNodes: 3}), " failure: 2 of 3 hosts came to h:29400 within 1s" + fix},
		{"nobody answers", late(rendezvous.Waiting{Note: "connection refused"}), " failure: the hosts did not meet at h:29400 within 1s: connection refused" + fix},
		{"the time is up", context.DeadlineExceeded, " failure: the hosts did not meet at h:29400 within 1s" + fix},
		{"other options", errors.New("min_nodes is 2 there"), " failure: min_nodes is 2 there → give all hosts the same options"},
	} {
		begins(t, tt.name, []Line{d.unmet(tt.err)}, []string{tt.want})
	}
	var said bytes.Buffer
	d.tell(rendezvous.Waiting{Note: "not shown"}) // to nobody
	d.Progress = &said
	for _, w := range []rendezvous.Waiting{{Joined: 1, MinNodes: 2, MaxNodes: 2}, {}, {Note: "a\x1b[2J"}} {
		d.tell(w)
	}
	if want := "muster doctor: 1 of 2 nodes have joined\nmuster doctor: a\n"; said.String() != want {
		t.Errorf("said %q, want %q", said.String(), want)
	}
}

// A host is looked for where its agent is, and where Gloo and NCCL would have it.
func TestPlaces(t *testing.T) {
	addrs := func(list ...string) (all []netip.Addr) {
		for _, a := range list {
			all = append(all, netip.MustParseAddr(a))
		}
		return all
	}
	const named = "where Gloo looks, the address of its name"
	for _, tt := range []struct {
		name, local string
		env         map[string]string
		names       map[string][]netip.Addr
		want        []place
	}{
		{"--local-addr", "10.0.0.1", nil, nil, []place{{"10.0.0.1", ""}}},
		{"its name is another address", "10.0.0.1", nil, map[string][]netip.Addr{"a": addrs("10.1.0.1")}, []place{{"10.0.0.1", ""}, {"10.1.0.1", named}}},
		{"its name is the same", "10.0.0.1", nil, map[string][]netip.Addr{"a": addrs("10.0.0.1")}, []place{{"10.0.0.1", ""}}},
		{"its name is loopback, which another check finds", "10.0.0.1", nil, map[string][]netip.Addr{"a": addrs("127.0.1.1")}, []place{{"10.0.0.1", ""}}},
		{"an interface for Gloo", "10.0.0.1", map[string]string{"GLOO_SOCKET_IFNAME": "ib0"}, map[string][]netip.Addr{"a": addrs("10.2.0.1")},
			[]place{{"10.0.0.1", ""}, {"10.1.0.1", "GLOO_SOCKET_IFNAME=ib0"}}},
		{"one for NCCL", "10.0.0.1", map[string]string{"NCCL_SOCKET_IFNAME": "ib", "GLOO_SOCKET_IFNAME": ""}, map[string][]netip.Addr{"a": addrs("10.0.0.1")},
			[]place{{"10.0.0.1", ""}, {"10.1.0.1", "NCCL_SOCKET_IFNAME=ib"}}},
		{"one that is not there", "10.0.0.1", map[string]string{"GLOO_SOCKET_IFNAME": "eth9"}, nil, []place{{"10.0.0.1", ""}}},
		{"the endpoint is this host", "", nil, map[string][]netip.Addr{"h": addrs("127.0.0.1", "10.9.9.9", "10.1.0.1")}, []place{{"10.1.0.1", ""}}},
		{"its name has no address of this host", "", nil, nil, []place{{"10.0.0.1", ""}}},
	} {
		d := onLoopback("a", 0)
		yes := true
		d.LocalAddr, d.Settings.IsHost = tt.local, &yes
		d.ifaces = []Interface{{Name: "lo", Up: true, Loopback: true, Addrs: addrs("127.0.0.1")},
			{Name: "eth0", Up: true, Addrs: addrs("10.0.0.1")}, {Name: "ib0", Up: true, Addrs: addrs("10.1.0.1")}}
		d.System.Lookup = func(name string) (string, bool) { value, ok := tt.env[name]; return value, ok }
		d.System.LookupHost = func(_ context.Context, name string) ([]netip.Addr, error) {
			if list, ok := tt.names[name]; ok {
				return list, nil
			}
			return nil, &net.DNSError{IsNotFound: true}
		}
		if diff := cmp.Diff(tt.want, d.places(t.Context())); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// A network that carries no more than some bytes at once is found out by trying, and told with the size that passes.
func TestStuck(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var mu sync.Mutex
	passes := true // of what is sent to find out what passes
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				request := make([]byte, len("muster-doctor 1 t sink\n"))
				if _, err := io.ReadFull(c, request); err != nil {
					return
				}
				if strings.HasSuffix(string(request), "ping\n") {
					for err == nil {
						if _, err = c.Read(make([]byte, 1)); err == nil {
							_, err = fmt.Fprintln(c, time.Now().UnixNano())
						}
					}
					return
				}
				n, _ := io.Copy(io.Discard, c)
				mu.Lock()
				defer mu.Unlock()
				if n == bulk || !passes {
					n = 0
				}
				_, _ = fmt.Fprintln(c, n)
			}()
		}
	}()
	c := caller{Real(), l.Addr().String(), "t"}
	f := c.probe(t.Context())
	if f.Problem != "" || f.Trip <= 0 || f.Passes != sizes[0] || f.Stuck != `1048576 bytes were sent, but the other side received "0"` {
		t.Errorf("%+v", f)
	}
	mu.Lock()
	passes = false
	mu.Unlock()
	if f := c.probe(t.Context()); f.Stuck == "" || f.Passes != 0 {
		t.Errorf("nothing passes: %+v", f)
	}
	c.addr = "127.0.0.1:1"
	if f := c.probe(t.Context()); f.Problem != "refused (nothing listens there, or a firewall rejects it)" || f.Stuck != "" {
		t.Errorf("nobody is there: %+v", f)
	}
	body, err := json.Marshal(f)
	var back finding
	if err = errors.Join(err, json.Unmarshal(body, &back)); err != nil || back != f {
		t.Errorf("%+v becomes %+v, %v", f, back, err)
	}
}
