package election_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/wire/pipe"
)

// Members admit whom they shall to both ports, and agents elect through them as ever.
func TestAllow(t *testing.T) {
	t.Parallel()
	l := &lab{t: t, names: newNames(3), members: make([]*proc, 3), tmp: t.TempDir()}
	for i, name := range l.names {
		bind, _, _ := net.SplitHostPort(name)
		cmd := exec.Command(muster, "serve")
		cmd.Env = append(os.Environ(), "TMPDIR="+l.tmp)
		log, err := os.Create(filepath.Join(t.TempDir(), "log"))
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		cmd.Stderr = log
		l.members[i] = spawn(t, cmd, &pipe.Serve{
			RunID: "job", Name: name, Members: l.names, Bind: bind, TTL: pipe.Millis(l.config(0).TTL),
			Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
		})
		defer func() {
			if text, _ := os.ReadFile(log.Name()); !strings.Contains(string(text), "the address is not in an allowed network") || !strings.Contains(string(text), "127.9.9.9:") {
				t.Errorf("log of %s: %s", name, text)
			}
		}()
	}
	for _, m := range l.members {
		m.expect(`"ready":true`)
	}
	for _, name := range l.names {
		host, _, _ := net.SplitHostPort(name)
		for _, url := range []string{"http://" + name + "/health", fmt.Sprintf("http://%s:29401/members", host)} {
			for _, from := range []string{"127.0.0.1", "127.9.9.9"} {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
				c := http.Client{Timeout: patience, Transport: &http.Transport{DialContext: d.DialContext, DisableKeepAlives: true}}
				resp, err := c.Get(url)
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				if served := err == nil && resp.StatusCode == http.StatusOK; served != (from == "127.0.0.1") {
					t.Errorf("%s from %s: %v, %v", url, from, resp, err)
				}
			}
		}
	}
	leader, others := agree(t, l.agent(0), l.agent(1))
	term := leader.leader().Term
	leader.closeNow(false)
	wait(t, others[0].Lost(term), "the loss of the leader")
	if !others[0].leader().Mine {
		t.Error("the other agent does not lead")
	}
	others[0].closeNow(true)
	for _, m := range l.members {
		_ = m.in.Close()
		<-m.over
	}
	if left, _ := filepath.Glob(filepath.Join(l.tmp, "*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
