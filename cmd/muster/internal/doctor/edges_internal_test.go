package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// brief is a line as "check status: text → advice".
func brief(l Line) string {
	text := fmt.Sprintf("%s %s: %s", l.Check, l.Status, l.Text)
	if l.Advice != "" {
		text += " → " + l.Advice
	}
	return text
}

// begins compares lines with how they should begin.
func begins(t *testing.T, what string, got []Line, want []string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || !strings.HasPrefix(brief(got[i]), want[i]) {
			var all []string
			for _, l := range got {
				all = append(all, brief(l))
			}
			t.Errorf("%s: line %d (-want +got):\n%s", what, i, cmp.Diff(want, all))
			return
		}
	}
}

// A report is for people, in groups with advice where something is wrong, or for programs.
func TestWriteReport(t *testing.T) {
	r := Report{Host: "a", Status: Failure, Lines: []Line{
		{"network", "names", OK, "a is 10.0.0.1", "not shown"},
		{"network", "port", Failure, "taken\nby a \x1b[31mprogram", "end it"},
		{"host", "memory", Warning, "1 GiB is free", ""},
	}}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	const want = `network
  ok       names: a is 10.0.0.1
  failure  port: taken by a program
           -> end it

host
  warning  memory: 1 GiB is free

a: 1 failure, 1 warning
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	var out bytes.Buffer
	if err := r.WriteJSON(&out); err != nil || bytes.Count(out.Bytes(), []byte("\n")) != 1 {
		t.Errorf("got %s, %v", out.String(), err)
	}
	var back Report
	if err := json.Unmarshal(out.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(r, back); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestSummary(t *testing.T) {
	for want, count := range map[string]map[Status]int{
		"all is well":             {OK: 3},
		"no failure, 2 warnings":  {OK: 3, Warning: 2},
		"1 failure":               {Failure: 1},
		"2 failures, 1 warning":   {Failure: 2, Warning: 1},
		"no failure, 1 warning":   {Warning: 1},
		"3 failures, 12 warnings": {Failure: 3, Warning: 12, OK: 9},
	} {
		if got := summary(count); got != want {
			t.Errorf("%v: got %q, want %q", count, got, want)
		}
	}
}

// Of many lines the worst are left, and the line that counts the rest is as bad as the worst of it.
func TestLimited(t *testing.T) {
	var few, many []Line
	for i := range maxNamed {
		few = append(few, ok("%d", i))
	}
	for i := range maxNamed + 3 {
		many = append(many, warning(strconv.Itoa(i), ""))
	}
	many[maxNamed+2] = failure("bad", "")
	if got := limited("c", few, "more", "look"); len(got) != maxNamed || got[0].Check != "c" {
		t.Errorf("few: %+v", got)
	}
	got := limited("c", many, "more links", "look")
	if len(got) != maxNamed+1 || got[0].Text != "bad" || got[1].Text != "0" {
		t.Errorf("many: %+v", got)
	}
	if last := brief(got[maxNamed]); last != "c warning: and 3 more links → look" {
		t.Errorf("the last line is %q", last)
	}
}

func TestWhyUnresolved(t *testing.T) {
	const took = 5 * time.Second
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"not there", &net.DNSError{Err: "no such host", IsNotFound: true}, "no such host"},
		{"silence", &net.DNSError{Err: "i/o timeout", IsTimeout: true}, "no name server answers (waited 5s)"},
		{"our time is up", context.DeadlineExceeded, "no name server answers (waited 5s)"},
		{"a server's fault", &net.DNSError{Err: "server misbehaving", Server: "10.0.0.53:53"}, "server misbehaving (name server 10.0.0.53:53)"},
		{"no server", &net.DNSError{Err: "server misbehaving"}, "server misbehaving"},
		{"another", errors.New("x"), "x"},
	} {
		if got := whyUnresolved(took, tt.err); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// Why a connection could not be made is told in words that lead to the cause.
func TestWhy(t *testing.T) {
	dial := func(err error) error { return &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", err)} }
	for _, tt := range []struct {
		err  error
		want string
	}{
		{dial(syscall.ECONNREFUSED), "refused (nothing listens there, or a firewall rejects it)"},
		{dial(syscall.EHOSTUNREACH), "unreachable (no route to host)"},
		{dial(syscall.ENETUNREACH), "unreachable (network is unreachable)"},
		{dial(syscall.EPERM), "forbidden by a firewall of this host"},
		{dial(syscall.EACCES), "forbidden by a firewall of this host"},
		{context.DeadlineExceeded, "no answer (packets vanish: a firewall drops them, or the host is down)"},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, "no answer (packets vanish: a firewall drops them, or the host is down)"},
	} {
		if got := why(tt.err); got != tt.want {
			t.Errorf("%v: got %q, want %q", tt.err, got, tt.want)
		}
	}
}

// dialed is a system that makes no connection: errs has the error for an address, or for "".
func dialed(errs map[string]error) *System {
	s := Real()
	s.Dial = func(_ context.Context, addr string, _ int) (net.Conn, error) {
		if err, ok := errs[addr]; ok && err == nil {
			ours, theirs := net.Pipe()
			theirs.Close()
			return ours, nil
		} else if ok {
			return nil, err
		}
		return nil, errs[""]
	}
	return s
}

// An endpoint that cannot be reached is a failure, or what is to be expected where the job is not there yet.
func TestUnreachedEndpoint(t *testing.T) {
	refused := os.NewSyscallError("connect", syscall.ECONNREFUSED)
	for _, tt := range []struct {
		name  string
		hosts int
		err   error
		want  string
	}{
		{"one host, nothing there yet", 1, refused,
			" warning: h:29400: refused (nothing listens there, or a firewall rejects it) → right if the job's store is still to be started there"},
		{"several hosts", 2, refused, " failure: h:29400: refused (nothing listens there, or a firewall rejects it), for "},
		{"no name", 2, &net.DNSError{Err: "no such host", IsNotFound: true},
			" failure: h:29400 cannot be reached: its name cannot be resolved → see the line about names"},
		{"silence", 1, context.DeadlineExceeded, " failure: h:29400: no answer (packets vanish: a firewall drops them, or the host is down), for "},
	} {
		d := &doctor{Config: Config{Host: "h", Port: 29400, MaxNodes: tt.hosts, System: dialed(map[string]error{"": tt.err})}}
		begins(t, tt.name, []Line{d.checkReach(t.Context())}, []string{tt.want})
	}
}

// Another program at the endpoint is not what the hosts can meet by; where it speaks HTTP that is said.
func TestStrangerAtTheEndpoint(t *testing.T) {
	for name, answer := range map[string]string{"HTTP": "HTTP/1.1 400 Bad Request\r\n\r\n", "something": "SSH-2.0-x\r\n"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					_, _ = c.Read(make([]byte, 1))
					_, _ = io.WriteString(c, answer)
				}()
			}
		}()
		d := &doctor{Config: Config{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, MaxNodes: 1, System: Real()}}
		line := d.checkReach(t.Context())
		l.Close()
		if line.Status != Failure || !strings.HasPrefix(line.Advice, "another program has the port: end it there") ||
			strings.Contains(line.Text, "web server") != (name == "HTTP") || !strings.HasSuffix(line.Text, "is not a TCPStore") {
			t.Errorf("%s: got %s", name, brief(line))
		}
	}
}

// A name with several addresses, one of which does not answer, costs every client its patience.
func TestDeadAddress(t *testing.T) {
	one, two := "10.0.0.1:7", "[fd00::1]:7"
	silent := context.DeadlineExceeded
	for _, tt := range []struct {
		name string
		errs map[string]error
		want []string
	}{
		{"all answer", map[string]error{one: nil, two: nil}, nil},
		{"one does not", map[string]error{one: nil, two: silent},
			[]string{"addresses warning: h is 10.0.0.1, fd00::1, but fd00::1: no answer (packets vanish: a firewall drops them, or the host is down) → clients that try"}},
		{"none does, which another check finds", map[string]error{one: silent, two: silent}, nil},
	} {
		s := dialed(tt.errs)
		s.LookupHost = func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}, nil
		}
		d := &doctor{Config: Config{Host: "h", Port: 7, System: s}}
		begins(t, tt.name, d.checkFamilies(t.Context()), tt.want)
	}
}

// Members that cannot be reached are named; those of a quorum are served by the agents, and may not be there yet.
func TestUnreachedMembers(t *testing.T) {
	refused := os.NewSyscallError("connect", syscall.ECONNREFUSED)
	members := []string{"https://h0:1", "h1:1", "h2:1"}
	for _, tt := range []struct {
		name, backend string
		errs          map[string]error
		want          []string
	}{
		{"all answer", "etcd", map[string]error{"h0:1": nil, "h1:1": nil, "h2:1": nil},
			[]string{" ok: 3 of 3 members of the etcd rendezvous can be reached"}},
		{"etcd", "etcd", map[string]error{"h0:1": refused, "h1:1": nil, "h2:1": context.DeadlineExceeded}, []string{
			" ok: 1 of 3 members of the etcd rendezvous can be reached",
			" failure: https://h0:1: refused (nothing listens there, or a firewall rejects it) → start it",
			" failure: h2:1: no answer"}},
		{"quorum", "quorum", map[string]error{"h0:1": nil, "h1:1": refused, "h2:1": nil}, []string{
			" ok: 2 of 3 members of the quorum rendezvous can be reached",
			" warning: h1:1: refused (nothing listens there, or a firewall rejects it) → right if the job has not been started on h1 yet"}},
	} {
		d := &doctor{Config: Config{Backend: tt.backend, Members: members, MaxNodes: 1, System: dialed(tt.errs)}}
		begins(t, tt.name, d.checkMembers(t.Context()), tt.want)
		if got := d.endpoint(); got != "https://h0:1,h1:1,h2:1" {
			t.Errorf("%s: the endpoint is %s", tt.name, got)
		}
	}
}

// What answers, and is no doctor, is said; a count that is not that of the bytes sent is an error.
func TestPeerIsNoDoctor(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.WriteString(c, "220 mail\r\n")
				_, _ = io.Copy(io.Discard, c)
			}()
		}
	}()
	c := caller{Real(), l.Addr().String(), "secret"}
	if _, _, err := c.ping(t.Context()); err == nil || err.Error() != "the program that answers there is not muster doctor" {
		t.Errorf("ping: %v", err)
	}
	if err := c.sink(t.Context(), 0, time.Minute, 3); err == nil || !strings.HasPrefix(err.Error(), `3 bytes were sent, but the other side received "220 mail`) {
		t.Errorf("sink: %v", err)
	}
}
