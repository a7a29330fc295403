//go:build linux

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/test/netlab"
)

// endpoint makes the agents of a site meet by the backend c10d.
func (s *site) endpoint(endpoint, conf string) {
	s.flags = func(int) string {
		return fmt.Sprintf("--rdzv-backend c10d --rdzv-endpoint %s --rdzv-conf %s", endpoint, conf)
	}
}

// An endpoint at which there is no rendezvous: an agent gives up after its
// join_timeout at the latest, and says what is there and what to check.
func TestHostsNoRendezvous(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		endpoint string // default host1:29400
		before   func(t *testing.T, lab *netlab.Lab)
		want     []string
		quick    bool // no sense in waiting
	}{
		{
			name: "HTTP", want: []string{"10.77.0.12", "HTTP"}, quick: true,
			before: func(t *testing.T, lab *netlab.Lab) {
				l := listen(t, lab.Host(1))
				go http.Serve(l, http.NotFoundHandler())
			},
		},
		{
			name: "silence", want: []string{"10.77.0.12", "silent"},
			before: func(t *testing.T, lab *netlab.Lab) { answer(t, listen(t, lab.Host(1)), func(net.Conn) {}) },
		},
		{
			name: "TLS", want: []string{"10.77.0.12", "TLS"}, quick: true,
			before: func(t *testing.T, lab *netlab.Lab) {
				cfg := selfSigned(t)
				answer(t, listen(t, lab.Host(1)), func(c net.Conn) {
					tls.Server(c, cfg).Handshake()
					c.Close()
				})
			},
		},
		{
			name: "SSH", want: []string{"10.77.0.12", "SSH-2.0"}, quick: true,
			before: func(t *testing.T, lab *netlab.Lab) {
				answer(t, listen(t, lab.Host(1)), func(c net.Conn) { io.WriteString(c, "SSH-2.0-OpenSSH_9.2\r\n") })
			},
		},
		{name: "nobody", want: []string{"host1:29400", "10.77.0.12", "fd77::12", "connection refused", "is running"}},
		{
			name: "firewall", want: []string{"host1:29400", "10.77.0.12", "firewall"},
			before: func(_ *testing.T, lab *netlab.Lab) { lab.Host(0).Cut(lab.Host(1)) },
		},
		{name: "unknown name", endpoint: "nowhere:29400", want: []string{"nowhere", "lookup"}},
		{name: "not our address", endpoint: "10.77.0.99:29400", want: []string{"10.77.0.99:29400"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, 2)
			if tt.before != nil {
				tt.before(t, s.lab)
			}
			if tt.endpoint == "" {
				tt.endpoint = "host1:29400"
			}
			timeout := 5 * time.Second
			if tt.quick {
				timeout = patience / 2
			}
			s.endpoint(tt.endpoint, fmt.Sprintf("%s,join_timeout=%d", limit9, int(timeout.Seconds())))
			began := time.Now()
			j := s.start(0, "--nnodes 2")
			s.want(1, j)
			took := time.Since(began)
			j.says(tt.want...).says("c10d rendezvous at " + tt.endpoint)
			if tt.quick && took > timeout/2 {
				t.Errorf("the agent took %v for what no wait can mend", took)
			}
			t.Logf("after %s: %s", ms(took), lastLine(j))
		})
	}
}

// lastLine is what the agent said last.
func lastLine(j *job) string {
	lines := strings.Split(strings.TrimSpace(j.errs()), "\n")
	return lines[len(lines)-1]
}

// listen listens at port 29400 of a host, until the end of the test.
func listen(t *testing.T, h *netlab.Host) (l net.Listener) {
	t.Helper()
	err := h.Do(func() (err error) {
		l, err = net.Listen("tcp", ":29400")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// answer does something with each connection, which stays open until the listener
// is closed.
func answer(t *testing.T, l net.Listener, with func(net.Conn)) {
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			go with(c)
		}
	}()
}

// selfSigned is a TLS server's configuration.
func selfSigned(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: key}}}
}

// Agents that do not fit together: those that come later are refused and say why,
// those that were there continue.
func TestHostsRefused(t *testing.T) {
	t.Parallel()
	t.Run("different nnodes", func(t *testing.T) {
		t.Parallel()
		s := newSite(t, 3)
		meetAt(0)(s)
		agents := s.startAll(2, "--nnodes 2")
		s.up(time.Time{}, 2)
		other := s.start(2, "--nnodes 2:3")
		s.want(1, other)
		other.says("--nnodes is 2:3 on host2 and 2:2 on the hosts that came before")
		s.finish(agents...)
	})
	t.Run("network that is not allowed", func(t *testing.T) {
		t.Parallel()
		s := newSite(t, 3)
		s.endpoint("10.77.0.11:29400", limit9+",allow=10.77.0.12,10.77.1.0/24")
		agents := s.startAll(2, "--nnodes 2:3")
		s.up(time.Time{}, 2)
		s.endpoint("10.77.0.11:29400", limit9+",join_timeout=5")
		other := s.start(2, "--nnodes 2:3")
		s.want(1, other)
		other.says("10.77.0.11:29400", "closed the connection")
		agents[0].says("10.77.0.13", "not in an allowed network")
		s.finish(agents...)
	})
	// The agents of a second job are spares of the first, and told so.
	t.Run("run ID of a job that runs", func(t *testing.T) {
		t.Parallel()
		s := newSite(t, 3)
		s.env = []string{"LOGLEVEL=WARNING"}
		s.serve(2, "listening on", muster(t).argv[0], "store", "--port", "29400")
		meetAt(2)(s)
		first := s.startAll(2, "--nnodes 2")
		s.up(time.Time{}, 2)
		second := []*job{s.start(0, "--nnodes 2"), s.start(1, "--nnodes 2")}
		for _, j := range second {
			s.untilSays(j, "waiting for hosts: this host is a spare: it takes the place of a host that is lost")
		}
		s.order(0, 0)
		s.order(1, 0)
		s.want(0, append(first, second...)...)
		for _, j := range second {
			j.says("the job has ended without needing this host", s.runID)
		}
	})
	t.Run("node rank that is taken", func(t *testing.T) {
		t.Parallel()
		s := newSite(t, 3)
		s.flags = func(host int) string {
			return fmt.Sprintf("--node-rank %d --master-addr host0 --master-port 29400 --rdzv-conf %s", host%2, limit9)
		}
		agents := s.startAll(2, "--nnodes 2")
		s.up(time.Time{}, 2)
		s.flags = func(int) string {
			return "--node-rank 1 --master-addr host0 --master-port 29400 --rdzv-conf " + limit9
		}
		other := s.start(2, "--nnodes 2")
		s.want(1, other)
		other.says("has joined already")
		s.finish(agents...)
	})
}

// A host that loses its power and starts again takes its place again at once: with c10d as well where the agent has the
// PID of before, as in a container. The holder would miss it after a minute.
func TestHostsReboot(t *testing.T) {
	t.Parallel()
	const minute = "keep_alive_interval=20,keep_alive_max_attempt=3,last_call_timeout=1,join_timeout=150"
	for name, flags := range map[string]string{
		"static": "--node-rank %d --master-addr host0 --master-port 29400 --rdzv-conf " + minute,
		"c10d":   "--rdzv-backend c10d --rdzv-endpoint host0:29400 --rdzv-conf " + minute,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, 2)
			s.flags = func(host int) string { return strings.ReplaceAll(flags, "%d", strconv.Itoa(host)) }
			agents := s.startAll(2, "--nnodes 2")
			s.up(time.Time{}, 2)
			off := time.Now()
			s.lab.Host(1).PowerOff()
			s.lab.Host(1).Boot()
			again := s.start(1, "--nnodes 2")
			up := s.up(off, 2)
			if took := up.Sub(off); took > 50*time.Second {
				t.Errorf("the host is back after %v", took)
			}
			t.Logf("the workers run again after %v", up.Sub(off))
			s.finish(agents[0], again)
		})
	}
}

// Two hosts of a static job that have one node rank: each host says which rank is missing, and ends with the timeout.
func TestHostsOfOneNodeRank(t *testing.T) {
	t.Parallel()
	s := newSite(t, 3)
	s.flags = func(host int) string {
		timeout := 8
		if host == 0 {
			timeout = 12 // the others lose the store when it ends
		}
		return fmt.Sprintf("--node-rank %d --master-addr host0 --master-port 29400 --rdzv-conf timeout=%d,%s",
			min(host, 1), timeout, limit9)
	}
	agents := s.startAll(3, "--nnodes 3")
	s.want(1, agents...)
	for _, j := range agents {
		j.says("missing node rank 2", "join timed out after ")
	}
	if all := agents[1].errs() + agents[2].errs(); !strings.Contains(all, "another host uses this node rank") {
		s.fatalf("no host is told that another one has its rank")
	}
}

// What may differ between the agents of a job, or be set for one of them.
func TestHostsLegal(t *testing.T) {
	t.Parallel()
	t.Run("different nproc", func(t *testing.T) {
		t.Parallel()
		s := newSite(t, 2)
		meetAt(0)(s)
		agents := []*job{s.start(0, "--nnodes 2 --nproc-per-node 1"), s.start(1, "--nnodes 2 --nproc-per-node 2")}
		up := s.await(time.Time{}, 3, "up", 3)
		ranks := map[int]string{}
		for _, r := range up {
			ranks[r.rank] = r.host
		}
		if len(ranks) != 3 || ranks[1] != "host1" {
			t.Errorf("ranks are on %v, want three of them, 1 on host1", ranks)
		}
		s.order(1, 0)
		s.finish(agents...)
	})
	t.Run("IPv6 endpoint", func(t *testing.T) {
		t.Parallel()
		s := newSite(t, 2)
		if s.lab.Host(0).Addr6 == "" {
			t.Skip("the kernel has no IPv6")
		}
		s.endpoint("[fd77::11]:29400", limit9)
		agents := s.startAll(2, "--nnodes 2")
		s.meetAtAddr("fd77::1", s.await(time.Time{}, 2, "up", 2))
		s.finish(agents...)
	})
	t.Run("local address", func(t *testing.T) {
		t.Parallel()
		s := newSite(t, 2)
		meetAt(0)(s)
		if s.lab.Host(0).Addr6 == "" {
			t.Skip("the kernel has no IPv6")
		}
		agents := []*job{s.start(0, "--nnodes 2 --local-addr fd77::11"), s.start(1, "--nnodes 2 --local-addr fd77::12")}
		s.meetAtAddr("fd77::1", s.await(time.Time{}, 2, "up", 2))
		s.finish(agents...)
	})
	t.Run("bind", func(t *testing.T) {
		t.Parallel()
		s := newSite(t, 2)
		s.endpoint("10.77.0.11:29400", limit9+",bind=10.77.0.11")
		agents := s.startAll(2, "--nnodes 2")
		s.meetAtAddr("10.77.0.1", s.await(time.Time{}, 2, "up", 2))
		err := s.lab.Host(0).Do(func() error {
			c, err := net.Dial("tcp", "127.0.0.1:29400")
			if err == nil {
				c.Close()
			}
			return err
		})
		if err == nil || !strings.Contains(err.Error(), syscall.ECONNREFUSED.Error()) {
			t.Errorf("dial a store that is bound elsewhere: %v, want refused", err)
		}
		s.finish(agents...)
	})
}

// meetAtAddr checks where workers meet.
func (s *site) meetAtAddr(prefix string, up []hostReport) {
	s.t.Helper()
	s.agree(up)
	if !strings.HasPrefix(up[0].master, prefix) {
		s.fatalf("workers meet at %s, want %s…", up[0].master, prefix)
	}
}
