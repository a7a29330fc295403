package quorum

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/muster-run/muster/internal/wire/admit"
	"github.com/muster-run/muster/internal/wire/pipe"
)

// All that is wrong with the settings of a bridge is said at once.
func TestElectSettings(t *testing.T) {
	t.Parallel()
	good := pipe.Elect{RunID: "job", ID: "a", Addr: "a:1", Endpoints: []string{"h"}, TTL: pipe.Millis(5 * time.Second)}
	for _, tt := range []struct {
		name   string
		change func(*pipe.Elect)
		want   []string
	}{
		{"nothing", func(*pipe.Elect) {}, nil},
		{"a user", func(c *pipe.Elect) { c.User, c.Password = "u", "p" }, nil},
		{"all", func(c *pipe.Elect) { *c = pipe.Elect{} }, []string{
			"run_id is empty", "id is empty", "addr is empty: where would this agent serve if it led?", "endpoints is empty: name etcd's members",
			"ttl_ms=0: want whole seconds, 1000 or more"}},
		{"parts of a second", func(c *pipe.Elect) { c.TTL = pipe.Millis(1500 * time.Millisecond) }, []string{"ttl_ms=1500: want whole seconds, 1000 or more"}},
		{"halves", func(c *pipe.Elect) { c.Cert, c.Password = "c", "p" }, []string{"cert and key go together", "user and password go together"}},
	} {
		cfg := good
		tt.change(&cfg)
		if d := cmp.Diff(tt.want, lines(checkElect(&cfg))); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
}

// lines are those of an error.
func lines(err error) []string {
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

// So is all that is wrong with those of a member.
func TestServeSettings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*pipe.Serve)
		want   []string
	}{
		{"nothing", func(*pipe.Serve) {}, nil},
		{"no majority survives a loss", func(c *pipe.Serve) { c.Members = []string{"h0", "h1"} },
			[]string{"2 members: want 1, 3 or 5, so that a majority remains when one is lost"}},
		{"not a member", func(c *pipe.Serve) { c.Name = "h9" }, []string{`this host's name "h9" is not among the members ["h0" "h1" "h2"]`}},
		{"twice, once with the port that all have", func(c *pipe.Serve) { c.Members = []string{"h0", "h1", "h1:29400"} },
			[]string{`member "h1:29400" is named twice`}},
		{"a port of each", func(c *pipe.Serve) { c.Members = []string{"h0", "h1:7", "h1:9"} }, nil},
		{"several", func(c *pipe.Serve) { c.RunID, c.Bind, c.Members[2] = "", "eth0", "h2:0" },
			[]string{"run_id is empty", `bind "eth0": want an IP address`, `member "h2:0": port 0: want 1 to 65534`}},
		{"heartbeats too rare", func(c *pipe.Serve) { c.Heartbeat = pipe.Millis(200 * time.Millisecond) },
			[]string{"election timeout 500ms with heartbeats every 200ms: want 5 heartbeats or more, 50 s at most"}},
		{"elections too rare", func(c *pipe.Serve) { c.Election = pipe.Millis(time.Minute) },
			[]string{"election timeout 1m0s with heartbeats every 50ms: want 5 heartbeats or more, 50 s at most"}},
	} {
		cfg := pipe.Serve{RunID: "job", Name: "h0", Members: []string{"h0", "h1", "h2"}}
		tt.change(&cfg)
		_, _, err := parseHosts(&cfg)
		if d := cmp.Diff(tt.want, lines(err)); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
}

// A token or files make connections to members secure; what is wrong with a file names its setting.
func TestTLSSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	id, err := identify("one", nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := identify("other", nil)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, otherKey := write("cert", id.cert), write("key", id.key), write("other", other.key)
	empty, none := write("empty", nil), filepath.Join(dir, "none")
	for _, tt := range []struct {
		name string
		cfg  pipe.Elect
		tls  bool
		want []string
	}{
		{"nothing", pipe.Elect{Endpoints: []string{"h"}}, false, nil},
		{"https", pipe.Elect{Endpoints: []string{"h", "https://h2"}}, true, nil},
		{"a token", pipe.Elect{Token: "t"}, true, nil},
		{"an authority", pipe.Elect{CACert: cert}, true, nil},
		{"files beside a token", pipe.Elect{Token: "t", CACert: cert, Cert: cert, Key: key}, true, nil},
		{"no such authority", pipe.Elect{CACert: none}, true, []string{"cacert: open " + none + ": no such file or directory"}},
		{"an empty authority, and another's key", pipe.Elect{CACert: empty, Cert: cert, Key: otherKey}, true,
			[]string{"cacert: " + empty + " has no certificate in PEM", "cert and key: tls: private key does not match public key"}},
	} {
		got, err := tlsConfig(&tt.cfg)
		if d := cmp.Diff(tt.want, lines(err)); d != "" || (got != nil) != tt.tls {
			t.Errorf("%s: TLS %t, want %t (-want +got):\n%s", tt.name, got != nil, tt.tls, d)
		}
	}
	// The client takes them over, beside all that is wrong with the endpoints.
	_, err = clientConfig(&pipe.Elect{CACert: none, Endpoints: []string{"http://h", "h:x"}})
	want := []string{"cacert: open " + none + ": no such file or directory",
		`endpoint "http://h" is http, and certificates are given: want https`, `endpoint "h:x": want host:port or a URL`}
	if d := cmp.Diff(want, lines(err)); d != "" {
		t.Errorf("the client's settings (-want +got):\n%s", d)
	}
}

// Etcd gets a member's identity in files that only this user reads, and that go with the member.
func TestMemberIdentity(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	plain := &member{}
	if cleanUp, err := plain.secure(); err != nil || plain.tls != nil {
		t.Errorf("without a token: TLS %v, %v", plain.tls, err)
	} else {
		cleanUp()
	}

	m := &member{cfg: pipe.Serve{Token: "t", Members: []string{"h0:7", "10.0.0.1"}}}
	cleanUp, err := m.secure()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{m.cfg.Cert, m.cfg.Key} {
		if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", file, info, err)
		}
	}
	cert, err := x509.ParseCertificate(m.tls.Certificates[0].Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"h0", "10.0.0.1"}, []string{cert.DNSNames[0], cert.IPAddresses[0].String()}); d != "" {
		t.Errorf("the names of the certificate (-want +got):\n%s", d)
	}
	cleanUp()
	if _, err := os.Stat(filepath.Dir(m.cfg.Key)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after its end there is %s: %v", filepath.Dir(m.cfg.Key), err)
	}

	absent := &member{cfg: pipe.Serve{CACert: m.cfg.CACert, Cert: m.cfg.Cert, Key: m.cfg.Key}}
	if _, err := absent.secure(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("files that are gone: %v", err)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	wrong := &member{cfg: pipe.Serve{CACert: text, Cert: text, Key: text}}
	if _, err := wrong.secure(); err == nil {
		t.Error("files without certificates are taken")
	}
}

// Data that is to stay has a directory for each run and member, whatever the run is called.
func TestDataDirectory(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	top := t.TempDir()
	m := &member{cfg: pipe.Serve{RunID: "../a b", DataDir: filepath.Join(top, "data")}, me: &host{client: "h0:29400"}}
	dir, cleanUp, err := m.dir()
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(top, "data", "..%2Fa%20b.h0:29400"); dir != want {
		t.Errorf("got %s, want %s", dir, want)
	}
	cleanUp()
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("after the member's end: %v, %v", info, err)
	}

	file := filepath.Join(top, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m.cfg.DataDir = file
	if _, _, err := m.dir(); !errors.Is(err, syscall.ENOTDIR) || !strings.HasPrefix(err.Error(), "data directory: ") {
		t.Errorf("below a file: %v", err)
	}

	m.cfg.DataDir = ""
	if dir, cleanUp, err = m.dir(); err != nil || !strings.HasPrefix(dir, tmp) {
		t.Fatalf("a temporary one: %s, %v", dir, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if cleanUp(); len(entries(t, tmp)) > 0 {
		t.Errorf("after the member's end: %v", entries(t, tmp))
	}
	t.Setenv("TMPDIR", filepath.Join(tmp, "none"))
	if _, _, err := m.dir(); !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "temporary data directory: ") {
		t.Errorf("without a place for it: %v", err)
	}
}

func entries(t *testing.T, dir string) []os.DirEntry {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Errors that no other try mends say which user may not do what, and how to mend that.
func TestFatal(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, user string
		err        error
		want       string
	}{
		{"a wrong password", "u", rpctypes.ErrAuthFailed, `etcd refuses user "u": user or password is wrong`},
		{"a user is needed", "", rpctypes.ErrUserEmpty,
			"etcd wants a user and a password: its authentication is enabled, and without them this agent may not read and write /muster/a%2Fb/"},
		{"nobody may", "", rpctypes.ErrPermissionDenied,
			"etcd wants a user and a password: its authentication is enabled, and without them this agent may not read and write /muster/a%2Fb/"},
		{"this user may not", "u", rpctypes.ErrPermissionDenied,
			`etcd's user "u" may not read and write /muster/a%2Fb/: give its role readwrite on the prefix /muster/`},
		{"as the wire has it", "u", rpctypes.ErrGRPCAuthFailed, `etcd refuses user "u": user or password is wrong`},
		{"no leader", "u", rpctypes.ErrNoLeader, ""},
		{"another error", "u", errors.New("reset"), ""},
	} {
		if got := fatal(tt.err, &pipe.Elect{RunID: "a/b", User: tt.user}); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// The fault of a member is its error without the address, which the reader has.
func TestDialFault(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{Port: 1}, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"refused", fmt.Errorf("Get: %w", refused), "connect: connection refused"},
		{"time", &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, "no answer (timeout)"},
		{"no TLS there", tls.RecordHeaderError{Msg: "first record"}, "it has no token or certificate, and this agent has (tls: first record)"},
		{"another authority", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}},
			"it has another token or authority than this agent (tls: failed to verify certificate: x509: certificate signed by unknown authority)"},
		{"another", errors.New("x"), "x"},
	} {
		if got := dialFault(tt.err); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// The list of the cluster with the longest history counts, then what others have lost.
func TestLostCluster(t *testing.T) {
	t.Parallel()
	list := func(cluster string, started int) news {
		r := &roster{cluster: cluster, members: make([]rosterMember, 3)}
		for i := range started {
			r.members[i].ClientURLs = []string{"http://h"}
		}
		return news{roster: r}
	}
	for _, tt := range []struct {
		name string
		all  []news
		want string
	}{
		{"nobody answers", []news{{fault: "x"}, {}}, ""},
		{"one has lost its data", []news{{}, {fresh: "1f"}, {fresh: "2a"}}, "1f"},
		{"one has data", []news{{fresh: "1f"}, list("2a", 0)}, "2a"},
		{"more have started", []news{list("1f", 1), list("2a", 3), list("3b", 2)}, "2a"},
	} {
		if got := lostCluster(tt.all); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// A member that lost its data takes its place where one has it; it was added already if it ended before it started.
func TestRejoin(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	if _, err := m.rejoin(t.Context(), nil); err == nil || err.Error() != "no member with data answers" {
		t.Errorf("nobody has data: %v", err)
	}
	peers := []rosterMember{{PeerURLs: []string{"http://h0:29401"}}, {Name: "h1", PeerURLs: []string{"http://h1:29401"}}}
	w, err := m.rejoin(t.Context(), &roster{cluster: "1f", members: peers})
	want := &way{"existing", "h0=http://h0:29401,h1=http://h1:29401", "muster/job"}
	if d := cmp.Diff(want, w, cmp.AllowUnexported(way{})); d != "" || err != nil {
		t.Errorf("added already: %v (-want +got):\n%s", err, d)
	}
}

// A start that fails for what others may mend is tried again, for a minute in all; the agent hears of it when it lasts.
func TestTryAgain(t *testing.T) {
	t.Parallel()
	taken := fmt.Errorf("listen: %w", syscall.EADDRINUSE)
	unequal := errors.New("start etcd: member count is unequal (h0, h1)")
	const waits = `{"waiting":"this host's member of the quorum cannot start yet, and tries again: `
	for _, tt := range []struct {
		name string
		err  error
		vain time.Duration
		want error
		says string
	}{
		{"a port is taken", taken, 0, errAgain, ""},
		{"for a while", taken, 3 * time.Second, errAgain, waits + `address already in use"}` + "\n"},
		{"for too long", taken, 2 * time.Minute, taken, ""},
		{"the others know another number", unequal, 3 * time.Second, errAgain, waits + `member count is unequal"}` + "\n"},
		{"what nobody mends", os.ErrPermission, 0, os.ErrPermission, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			m := &member{out: pipe.NewWriter(&out), vain: tt.vain}
			if got := m.tryAgain(t.Context(), time.Now().Add(-time.Second), tt.err); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			if out.String() != tt.says {
				t.Errorf("it says %q, want %q", out.String(), tt.says)
			}
			if tt.want == errAgain && m.vain < tt.vain+time.Second {
				t.Errorf("its failed starts count for %v, want the time of this one on top of %v", m.vain, tt.vain)
			}
		})
	}
}

// Connections from elsewhere than the allowed networks end, and one line of the log names the first.
func TestAllowedNetworks(t *testing.T) {
	t.Parallel()
	list, err := admit.NewList([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	m := &member{cfg: pipe.Serve{Bind: "127.0.0.1", Allow: list}, logger: slog.New(slog.NewTextHandler(&log, nil))}
	l, err := m.open("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		nc, err := l.Accept()
		if err == nil {
			nc.Close()
		}
		done <- err
	}()
	for range 3 {
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v, want the connection's end", err)
		}
		nc.Close()
	}
	l.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept returns %v, want that the listener is closed", err)
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "allow=[192.0.2.0/24]") {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
}
