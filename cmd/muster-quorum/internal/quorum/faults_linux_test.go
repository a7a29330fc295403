package quorum

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"

	"github.com/muster-run/muster/internal/wire/pipe"
)

// serving answers each connection to a new address of this host.
func serving(t *testing.T, answer func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer nc.Close()
				answer(nc)
			}()
		}
	}()
	return l.Addr().String()
}

// What is wrong at a member's address is told by what answers there, or does not.
func TestAskFaults(t *testing.T) {
	t.Parallel()
	id, err := identify("the token of this job", []string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	other, err := identify("the token of another job", []string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	ours, err := id.config()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := other.config()
	if err != nil {
		t.Fatal(err)
	}
	silent := func(nc net.Conn) { _, _ = io.Copy(io.Discard, nc) }
	secure := func(c *tls.Config) func(net.Conn) {
		return func(nc net.Conn) {
			if s := tls.Server(nc, c); s.Handshake() == nil {
				silent(s)
			}
		}
	}
	unasked := theirs.Clone()
	unasked.ClientAuth = tls.NoClientCert
	mail := func(nc net.Conn) { _, _ = io.WriteString(nc, "220 mail\r\n"); silent(nc) }
	for _, tt := range []struct {
		name   string
		answer func(net.Conn)
		tls    *tls.Config
		want   string // how it begins
	}{
		{"silence", silent, nil, "connected, but no answer"},
		{"TLS, where this agent has none", secure(unasked), nil, "it speaks TLS: name the certificate of its authority (cacert)"},
		{"none, where this agent has a token", mail, ours, "it has no token or certificate, and this agent has ("},
		{"another token", secure(theirs), ours, otherToken + " ("},
		{"the same, and no member behind it", secure(ours), ours, "connected, but no answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // at which those end that do not answer
			defer cancel()
			scheme := "http://"
			if tt.tls != nil {
				scheme = "https://"
			}
			got := ask(ctx, clientv3.Config{TLS: tt.tls, DialTimeout: time.Second}, scheme+serving(t, tt.answer))
			if !strings.HasPrefix(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	if got := ask(t.Context(), clientv3.Config{}, "http://127.0.0.1:1"); got != "connect: connection refused" {
		t.Errorf("nobody: %q", got)
	}
	if got := ask(t.Context(), clientv3.Config{}, "http://[::1"); !strings.Contains(got, "missing ']'") {
		t.Errorf("no URL: %q", got)
	}
}

// Members that do not answer are named, with why; one that only has no data is up.
func TestWhoIsMissing(t *testing.T) {
	t.Parallel()
	lost := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(freshHeader, "5")
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	m, _ := others(t, lost)
	says := func(want string, most bool) {
		t.Helper()
		if text, majority := m.whoIsMissing(t.Context()); text != want || majority != most {
			t.Errorf("%q, %t; want %q, %t", text, majority, want, most)
		}
	}
	says("3 of 3 members of the quorum are up", true)
	there := *m.others[0]
	m.others[0].peer = strings.Replace(there.peer, ":29401", ":1", 1)
	says("2 of 3 members of the quorum are up: "+there.name+" (connect: connection refused) does not answer", true)
	m.others[1].peer = strings.Replace(m.others[1].peer, ":29401", ":1", 1)
	says("1 of 3 members of the quorum are up: "+there.name+" (connect: connection refused), "+m.others[1].name+" (connect: connection refused) do not answer", false)
}

// A member learns that the others have begun the cluster that follows from its own, which is then dead.
func TestSucceeded(t *testing.T) {
	t.Parallel()
	cluster := ""
	m, _ := others(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(clusterHeader, cluster)
		_, _ = io.WriteString(w, "[]")
	})
	mine, err := types.IDFromString(m.clusterID(m.tokens[0]))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, cluster string
		want          bool
	}{
		{"its own", mine.String(), false},
		{"another run's", "1234", false},
		{"the next", m.clusterID(successor("job", mine.String())), true},
	} {
		cluster = tt.cluster
		if got := m.succeeded(t.Context(), mine); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
	if want := []string{"muster/job", successor("job", mine.String())}; !slices.Equal(m.tokens, want) {
		t.Errorf("it knows the tokens %q, want %q", m.tokens, want)
	}
}

// An address that is not this host's is an error at once, and so is a disk that is full.
func TestCannotServe(t *testing.T) {
	t.Parallel()
	m, _ := others(t, nil)
	m.cfg.Bind = "192.0.2.1"
	began := time.Now()
	if err := m.freePorts(t.Context(), time.Hour); !errors.Is(err, syscall.EADDRNOTAVAIL) ||
		!strings.HasSuffix(err.Error(), "; name another port after the host in --rdzv-endpoint") || time.Since(began) > time.Minute {
		t.Errorf("got %v", err)
	}
	if err := checkRoom(t.TempDir()); err != nil {
		t.Error(err)
	}
	if err := checkRoom("/proc/member"); err == nil || !strings.HasPrefix(err.Error(), "data directory /proc/member: 0 KiB are free, and a member of the quorum needs 16 MiB") {
		t.Errorf("where nothing is free: %v", err)
	}
}

// What a member proves itself with has to be there; what it makes of a token goes with it.
func TestSecure(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	bad := filepath.Join(dir, "bad.pem")
	if err := os.WriteFile(bad, []byte("boo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		cfg  pipe.Serve
		want string
	}{
		{"nothing", pipe.Serve{}, "<nil>"},
		{"no file", pipe.Serve{CACert: dir + "/none", Cert: dir + "/none", Key: dir + "/none"}, "open " + dir + "/none: no such file or directory"},
		{"no certificates", pipe.Serve{CACert: bad, Cert: bad, Key: bad}, "tls: failed to find any PEM data in certificate input"},
	} {
		m := &member{cfg: tt.cfg}
		cleanUp, err := m.secure()
		if fmt.Sprint(err) != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
		cleanUp()
	}
	m := &member{cfg: pipe.Serve{Token: "the token of this job", Members: []string{"h0:1"}}}
	cleanUp, err := m.secure()
	if err != nil || m.tls == nil || len(entries(t, dir)) != 2 {
		t.Errorf("%v, %v", err, entries(t, dir))
	}
	if info, err := os.Stat(m.cfg.Key); err != nil || info.Mode() != 0o600 {
		t.Errorf("the key: %v, %v", info, err)
	}
	if cleanUp(); len(entries(t, dir)) != 1 {
		t.Errorf("after the member's end: %v", entries(t, dir))
	}
	t.Setenv("TMPDIR", filepath.Join(dir, "none"))
	m = &member{cfg: pipe.Serve{Token: "the token of this job", Members: []string{"h0:1"}}}
	if _, err := m.secure(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a place for the key: %v", err)
	}
}

// Etcd's server listens on sockets of this user's behind a guard, and what comes over the network gets there; the
// guard leaves nothing behind, also where it cannot be put up.
func TestGuard(t *testing.T) {
	dir := t.TempDir()
	if len(dir) > 64 {
		dir = "/tmp"
	}
	t.Setenv("TMPDIR", dir)
	left := func() (all []string) {
		all, _ = filepath.Glob(filepath.Join(dir, tempPattern))
		return all
	}
	before := left()
	m, _ := others(t, nil)
	m.cfg.Bind = strings.TrimSuffix(m.me.name, ":29400")
	c := &embed.Config{ListenClientUrls: make([]url.URL, 1), ListenPeerUrls: make([]url.URL, 1)}
	stop, err := m.guard(c)
	if err != nil {
		t.Fatal(err)
	}
	for address, u := range map[string]url.URL{m.me.client: c.ListenClientUrls[0], m.me.peer: c.ListenPeerUrls[0]} {
		early, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := early.Read(make([]byte, 1)); err == nil {
			t.Error("something answers before etcd is there")
		}
		early.Close()
		etcd, err := net.Listen(u.Scheme, u.Host)
		if err != nil {
			t.Fatal(err)
		}
		nc, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(nc, "question"); err != nil {
			t.Fatal(err)
		}
		_ = nc.(*net.TCPConn).CloseWrite()
		inside, err := etcd.Accept()
		if err != nil {
			t.Fatal(err)
		}
		asked, err := io.ReadAll(inside) // the half that is closed is passed on
		if err != nil || string(asked) != "question" {
			t.Errorf("etcd is asked %q, %v", asked, err)
		}
		_, _ = io.WriteString(inside, "answer")
		inside.Close()
		if said, err := io.ReadAll(nc); err != nil || string(said) != "answer" {
			t.Errorf("got %q, %v", said, err)
		}
		nc.Close()
		etcd.Close()
	}
	if _, err := m.guard(&embed.Config{ListenClientUrls: make([]url.URL, 1), ListenPeerUrls: make([]url.URL, 1)}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("another one: %v", err)
	}
	if stop(); len(left()) > len(before) {
		t.Errorf("left are %v", left())
	}
	if err := m.tryPorts(); err != nil {
		t.Errorf("after its end: %v", err)
	}
	t.Setenv("TMPDIR", filepath.Join(dir, "none"))
	if _, err := m.guard(c); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a place for the sockets: %v", err)
	}
}

// Work that does not end in time is left.
func TestBoundedWork(t *testing.T) {
	t.Parallel()
	done := false
	if bounded(time.Minute, func() { done = true }); !done {
		t.Error("it is left before its end")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	bounded(time.Millisecond, func() { <-ctx.Done() })
}

// A member whose settings are nonsense says so, and ends.
func TestServeSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]string{
		"boo\n":                  "settings: ",
		`{"members": []}` + "\n": "0 members: want 1, 3 or 5",
		"":                       "settings: EOF",
	} {
		var out strings.Builder
		err := Serve(t.Context(), strings.NewReader(settings), &out, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(out.String(), `{"error":`) {
			t.Errorf("%q: %v, told %q", settings, err, out.String())
		}
	}
}

// A leader is a member that is well.
type leader struct {
	pb.UnimplementedMaintenanceServer
}

func (leader) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return &pb.StatusResponse{Header: &pb.ResponseHeader{}, Leader: 1}, nil
}

// After a request that failed the client leaves out members that do not answer, unless none does.
func TestTroubleGivesMembersUp(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterMaintenanceServer(server, leader{})
	go server.Serve(l)
	t.Cleanup(server.Stop)
	frozen := serving(t, func(nc net.Conn) { _, _ = io.Copy(io.Discard, nc) })
	b := &bridge{cfg: pipe.Elect{Endpoints: []string{frozen, l.Addr().String()}, TTL: pipe.Millis(time.Second)},
		events: make(chan any), logger: slog.New(slog.DiscardHandler)}
	if b.client, err = clientConfig(&b.cfg); err != nil {
		t.Fatal(err)
	}
	cli, err := clientv3.New(b.client)
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	both := cli.Endpoints()
	for i, want := range [][]string{both[1:], both} {
		if i == 1 {
			server.Stop()
		}
		var work sync.WaitGroup
		if err := b.onTrouble(t.Context(), &work, cli, context.DeadlineExceeded); err != nil {
			t.Fatal(err)
		}
		b.onProbed((<-b.events).(probed))
		work.Wait()
		if got := cli.Endpoints(); !slices.Equal(got, want) {
			t.Errorf("%d: the client asks %q, want %q", i, got, want)
		}
	}
}
