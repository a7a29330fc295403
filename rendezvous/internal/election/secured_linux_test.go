package election_test

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/test/testcert"
	"github.com/muster-run/muster/rendezvous/internal/election"
)

// Members of a job with a token, or with certificates, elect as ever, through both of their
// ports; somebody without reads and writes nothing there.
func TestSecuredMembers(t *testing.T) {
	ca, other := testcert.New(t), testcert.New(t)
	named := newNames(3)
	var hosts []string
	for _, name := range named {
		host, _, _ := net.SplitHostPort(name)
		hosts = append(hosts, host)
	}
	cert, key := ca.Issue(hosts...)
	otherCert, otherKey := other.Issue()
	for _, tt := range []struct {
		name          string
		give, mistake func(*election.Config)
	}{
		{"token", func(c *election.Config) { c.Token = "the token of this job" }, func(c *election.Config) { c.Token = "not the token of this job" }},
		{"certificates", func(c *election.Config) { c.CACert, c.Cert, c.Key = ca.File, cert, key },
			func(c *election.Config) { c.CACert, c.Cert, c.Key = other.File, otherCert, otherKey }},
		{"token and allow", func(c *election.Config) {
			c.Token = "the token of this job"
			c.Member.Allow = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		}, func(c *election.Config) { c.Token = "not the token of this job" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := &lab{t: t, names: newNames(3)}
			if tt.name == "certificates" {
				l.names = named // in the certificate
			}
			var agents []*agent
			for i := range l.names {
				cfg := l.quorumConfig(i)
				tt.give(&cfg)
				agents = append(agents, startAgent(t, cfg))
			}
			leader, others := agree(t, agents...)

			strangers := map[string]*http.Client{
				"http": {Timeout: patience}, "https": {Timeout: patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}},
			}
			for _, name := range l.names {
				host, port, _ := net.SplitHostPort(name)
				for _, url := range []string{name + "/health", net.JoinHostPort(host, next(t, port)) + "/members"} {
					for scheme, c := range strangers {
						if resp, err := c.Get(scheme + "://" + url); err == nil && resp.StatusCode < 400 {
							t.Errorf("%s://%s: %v", scheme, url, resp.Status)
						}
					}
				}
			}
			cfg := l.config(0)
			startAgent(t, cfg).waits("it speaks TLS")
			tt.mistake(&cfg)
			startAgent(t, cfg).waits("no member of etcd answers", "it has another token or authority than this agent (tls: ")

			term := leader.leader().Term
			leader.closeNow(false)
			wait(t, others[0].Lost(term), "the loss of the leader")
			agree(t, others...)
			for _, a := range others {
				a.closeNow(false)
			}
		})
	}
}

func next(t *testing.T, port string) string {
	t.Helper()
	n, err := net.LookupPort("tcp", port)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix((&net.TCPAddr{Port: n + 1}).String(), ":")
}
