package quorum

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/muster-run/muster/internal/wire/pipe"
)

func TestEndpointURL(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in     string
		secure bool
		want   string // an error if it has a space
	}{
		{"h", false, "http://h:2379"},
		{"h:1", false, "http://h:1"},
		{"h:1", true, "https://h:1"},
		{"http://h:1/", false, "http://h:1"},
		{"https://h", true, "https://h:2379"},
		{"10.0.0.1", false, "http://10.0.0.1:2379"},
		{"[fe80::1]:7", false, "http://[fe80::1]:7"},
		{"[fe80::1]", false, "http://[fe80::1]:2379"},
		{"fe80::1", false, "http://[fe80::1]:2379"},
		{"http://h:1", true, `endpoint "http://h:1" is http, and certificates are given: want https`},
		{"unix:///run/etcd", false, `endpoint "unix:///run/etcd": want http:// or https://`},
		{"h:1/path", false, `endpoint "h:1/path": want host:port or a URL`},
		{"h:99999", false, `endpoint "h:99999": want host:port or a URL`},
		{"h/path", false, `endpoint "h/path": want host:port or a URL`},
		{"", false, `endpoint "": want host:port or a URL`},
		{":1", false, `endpoint ":1": want host:port or a URL`},
	} {
		got, err := endpointURL(tt.in, tt.secure)
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("endpointURL(%q, %v): got %s, want %s", tt.in, tt.secure, got, tt.want)
		}
	}
}

func TestParseHosts(t *testing.T) {
	t.Parallel()
	me, others, err := parseHosts(&pipe.Serve{RunID: "r", Name: "h1", Members: []string{"h0:7", "h1", "[fe80::1]"}})
	if err != nil {
		t.Fatal(err)
	}
	got := []host{*me, *others[0], *others[1]}
	want := []host{
		{"h1", "h1:29400", "h1:29401", false}, {"h0:7", "h0:7", "h0:8", false}, {"[fe80::1]", "[fe80::1]:29400", "[fe80::1]:29401", false},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(host{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for _, name := range []string{"", "h=1", "h,i", "h i", "h/x", "h:0", "h:x", "h:65535"} {
		if h, err := parseHost(name, 29400); err == nil {
			t.Errorf("parseHost(%q): got %+v, want an error", name, h)
		}
	}
}

func TestOutage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name             string
		down, leaderless []string
		want             string
	}{
		{"all down", []string{"a: refused", "b: timeout"}, nil, "no member of etcd answers: a: refused; b: timeout"},
		{"too few up", []string{"a: refused", "b: timeout"}, []string{"c"},
			"etcd has no leader, as 1 of 3 members answer and a majority is needed; up: c; down: a: refused; b: timeout"},
		{"apart", nil, []string{"a", "b", "c"}, "etcd has no leader, as 3 of 3 members answer and a majority is needed; up: a, b, c"},
	} {
		if got := outage(tt.down, tt.leaderless); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestPlain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		want string
	}{
		{errors.New("a\n b"), "a b"},
		{rpctypes.ErrNoLeader, "etcdserver: no leader"},
		{errors.New(`rpc error: code = Unavailable desc = connection error: desc = "transport: broken"`), "transport: broken"},
	} {
		if got := plain(tt.err); got != tt.want {
			t.Errorf("plain(%v): got %q, want %q", tt.err, got, tt.want)
		}
	}
}

// newMember is the first of three.
func newMember(t *testing.T) *member {
	t.Helper()
	m := &member{cfg: pipe.Serve{RunID: "job", Name: "h0", Members: []string{"h0", "h1", "h2"}}, tokens: []string{"muster/job"}}
	var err error
	if m.me, m.others, err = parseHosts(&m.cfg); err != nil {
		t.Fatal(err)
	}
	return m
}

// What a member without data does about what the others tell it.
func TestBegin(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	first := m.clusterID("muster/job")
	second := m.clusterID(successor("job", first))
	if first == second || first == "" {
		t.Fatalf("clusters %q and %q: want two", first, second)
	}
	list := func(cluster string, meStarted bool) news {
		r := &roster{cluster: cluster}
		for _, h := range []string{"h0", "h1", "h2"} {
			x := rosterMember{Name: h, PeerURLs: []string{"http://" + h + ":29401"}, ClientURLs: []string{"http://" + h + ":29400"}}
			if h == "h0" && !meStarted {
				x.ClientURLs = nil
			}
			r.members = append(r.members, x)
		}
		return news{roster: r}
	}
	added := list(first, false)
	added.roster.members[0].Name = ""
	for _, tt := range []struct {
		name string
		all  []news
		want string // the token; "" is to take a place again
	}{
		{"nobody answers", []news{{}, {}}, "muster/job"},
		{"others have begun", []news{list(first, false), {}}, "muster/job"},
		{"others have this member's past", []news{list(first, true), list(first, true)}, ""},
		{"others wait with no data either", []news{{fresh: first}, {}}, ""},
		{"others have begun again", []news{list(first, true), list(second, false)}, "muster/job/" + first},
		{"others have begun again, and one knows nobody of it", []news{list(second, false), list(first, false)}, "muster/job/" + first},
		{"one knows nobody, and others have begun again", []news{list(first, false), list(second, false)}, "muster/job/" + first},
		{"others have begun again, and nobody knows after what", []news{list(second, false), {}}, ""},
		{"this member was added", []news{added, {}}, ""},
		{"not all have heard yet that this member has begun", []news{list(first, false), list(first, true)}, ""},
		{"not all have heard yet that this member was added", []news{list(first, false), added}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := newMember(t)
			m.learn(tt.all)
			w := m.begin(tt.all)
			want := &way{embed.ClusterStateFlagNew, "h0=http://h0:29401,h1=http://h1:29401,h2=http://h2:29401", tt.want}
			if tt.want == "" {
				want = nil
			}
			if diff := cmp.Diff(want, w, cmp.AllowUnexported(way{})); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if n := m.countFresh([]news{{fresh: first}, {fresh: second}}, first); n != 2 {
		t.Errorf("countFresh: got %d, want 2: this one and one more of that cluster", n)
	}
}

func TestExisting(t *testing.T) {
	t.Parallel()
	w := newMember(t).existing([]rosterMember{
		{Name: "h1", PeerURLs: []string{"http://h1:29401"}}, {PeerURLs: []string{"http://h0:29401"}}, {PeerURLs: []string{"http://h2:29401"}},
	})
	want := &way{embed.ClusterStateFlagExisting, "h1=http://h1:29401,h0=http://h0:29401,h2:29401=http://h2:29401", "muster/job"}
	if diff := cmp.Diff(want, w, cmp.AllowUnexported(way{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A member says who has its port, and nothing if that is the same run's.
func TestPortHolder(t *testing.T) {
	t.Parallel()
	// An address of its own: nobody else takes the port beside the server's.
	ip := fmt.Sprintf("127.77.%d.%d", os.Getpid()>>8&255, os.Getpid()&255)
	if runtime.GOOS != "linux" {
		ip = "127.0.0.1"
	}
	cluster, asked := "", make(chan struct{}, 1)
	answer := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if cluster != "" {
			w.Header().Set(clusterHeader, cluster)
			_, _ = w.Write([]byte("[]"))
		}
		select {
		case asked <- struct{}{}:
		default:
		}
	})
	secure := func(token string) *tls.Config {
		id, err := identify(token, []string{ip})
		if err != nil {
			t.Fatal(err)
		}
		c, err := id.config()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	one, other := secure("the token of this job"), secure("not the token of this job")
	for _, tt := range []struct {
		name         string
		theirs, mine *tls.Config
		run, want    string // "" is served
	}{
		{"same run", nil, nil, "job", ""},
		{"same run and token", one, one, "job", ""},
		{"another run", nil, nil, "other", "a member of another run's quorum has the port"},
		{"another token", one, other, "job", "a member of a quorum has the port, and it has another token or authority than this agent (tls: "},
		{"no token here", one, nil, "job", "the program that has the port speaks TLS"},
		{"no token there", nil, one, "job", "a member of a quorum without a token or certificate has the port, and this agent has one"},
		{"no member", nil, nil, "", "another program has the port"},
	} {
		server := httptest.NewUnstartedServer(answer)
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.Listener.Close()
		l, err := net.Listen("tcp", ip+":0")
		if err != nil {
			t.Fatal(err)
		}
		server.Listener = l
		if server.TLS = tt.theirs; tt.theirs != nil {
			server.StartTLS()
		} else {
			server.Start()
		}
		_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
		n, _ := strconv.Atoi(port)
		name := fmt.Sprintf("%s:%d", ip, n-1)
		var out bytes.Buffer
		m := &member{cfg: pipe.Serve{RunID: "job", Name: name, Members: []string{name}, Bind: ip}, out: pipe.NewWriter(&out), tls: tt.mine}
		if m.me, _, err = parseHosts(&m.cfg); err != nil {
			t.Fatal(err)
		}
		m.me.secure = tt.mine != nil
		cluster = ""
		if tt.run != "" {
			cluster = m.clusterID("muster/" + tt.run)
		}
		if tt.want != "" {
			if err := m.freePorts(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "address already in use: "+tt.want) {
				t.Errorf("%s: got %v, want %q in it", tt.name, err, tt.want)
			}
			server.Close()
			continue
		}
		select {
		case <-asked:
		default:
		}
		free := make(chan error)
		go func() { free <- m.freePorts(t.Context(), portPatience) }()
		<-asked
		<-asked
		server.Close()
		if err := <-free; err != nil || !strings.HasPrefix(out.String(), `{"ready":true}`+"\n") {
			t.Errorf("%s: got %v, and said %s", tt.name, err, out.String())
		}
	}
}

// Another program's server at the port of a member is not a member that is up.
func TestStrangerIsNotCounted(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	for _, h := range m.others {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if h == m.others[0] {
				w.Header().Set(clusterHeader, "abc")
			}
			_, _ = w.Write([]byte("[]"))
		}))
		defer s.Close()
		h.peer = strings.TrimPrefix(s.URL, "http://")
	}
	want := "2 of 3 members of the quorum are up: " + m.others[1].name + " (another program has the port) does not answer"
	if got, majority := m.whoIsMissing(t.Context()); got != want || !majority {
		t.Errorf("got %q, majority %t, want %q", got, majority, want)
	}
}

// Whatever answers on a member's port, nothing but a list counts.
func FuzzAskHost(f *testing.F) {
	f.Add(200, "abc", []byte(`[{"id":18446744073709551615,"name":"h0","peerURLs":["http://h0:1"],"clientURLs":["http://h0:0"]}]`))
	f.Add(200, "", []byte(`[]`))
	f.Add(200, "abc", []byte(`{}`))
	f.Add(503, "abc", []byte(`x`))
	f.Add(404, "", []byte(`<html>`))
	f.Fuzz(func(t *testing.T, status int, id string, body []byte) {
		if status < 200 || status > 599 || strings.ContainsFunc(id, func(c rune) bool { return c < '0' || c > 'z' }) {
			t.Skip()
		}
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(clusterHeader, id)
			w.Header().Set(freshHeader, id)
			w.WriteHeader(status)
			_, _ = w.Write(body)
		}))
		defer s.Close()
		n := askHost(t.Context(), &host{peer: strings.TrimPrefix(s.URL, "http://")}, nil)
		if n.roster != nil && (status != http.StatusOK || id == "") || n.fresh != "" && status != http.StatusServiceUnavailable {
			t.Errorf("status %d with cluster %q and %q: got %+v", status, id, body, n)
		}
		m := newMember(t)
		m.learn([]news{n})
		_ = m.begin([]news{n})
	})
}

func TestMainArguments(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		in   string
		want int
		out  string
	}{
		{nil, "", 2, ""},
		{[]string{"vote"}, "", 2, ""},
		{[]string{"--help"}, "", 0, ""},
		{[]string{"elect"}, "", 1, `{"error":"settings: EOF"}`},
		{[]string{"elect"}, "{}\n", 1, "run_id is empty"},
		{[]string{"serve"}, "{}\n", 1, "0 members: want 1, 3 or 5"},
	} {
		var out, errOut bytes.Buffer
		if got := Main(t.Context(), tt.args, strings.NewReader(tt.in), &out, &errOut); got != tt.want {
			t.Errorf("%q: got status %d, want %d", tt.args, got, tt.want)
		}
		if !strings.Contains(out.String(), tt.out) {
			t.Errorf("%q: got %s, want %s in it", tt.args, out.String(), tt.out)
		}
		if tt.out == "" && !strings.Contains(errOut.String(), "muster-quorum elect") {
			t.Errorf("%q: got no usage: %s", tt.args, errOut.String())
		}
	}
}

// While somebody has the port where a notice is to be, the log does not say so all the time.
func TestNoticeOfATakenPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var log bytes.Buffer
	m := &member{cfg: pipe.Serve{Bind: "127.0.0.1"}, me: &host{peer: l.Addr().String()}, logger: slog.New(slog.NewTextHandler(&log, nil))}
	for range 20 {
		if up := m.post(nil, "1f"); up != nil {
			up.close()
			t.Fatal("two have one port")
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "cannot tell the others") {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
}

// Strangers that connect and say nothing do not use up a member's descriptors: the first of
// them have to go. Who proves himself is let in meanwhile.
func TestIdleStrangers(t *testing.T) {
	id, err := identify("the token of this job", []string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	m := &member{cfg: pipe.Serve{Bind: "127.0.0.1"}, logger: slog.New(slog.DiscardHandler)}
	m.unproven.most = 8
	if m.tls, err = id.config(); err != nil {
		t.Fatal(err)
	}
	m.tlsServer = m.tls
	socket := filepath.Join(t.TempDir(), "etcd")
	etcd, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	l, err := m.open("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go m.forward(l, socket)
	var idle []net.Conn
	for range 12 {
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		idle = append(idle, nc)
	}
	for i, nc := range idle[:4] {
		nc.SetReadDeadline(time.Now().Add(handshakeLimit / 2))
		if _, err := nc.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("connection %d: %v, want its end", i, err)
		}
	}
	secure, err := tls.Dial("tcp", l.Addr().String(), m.tls)
	if err != nil {
		t.Fatal(err)
	}
	defer secure.Close()
	if _, err := secure.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	inside, err := etcd.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	if _, err := io.ReadFull(inside, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}
