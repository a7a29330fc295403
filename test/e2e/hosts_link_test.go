//go:build linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/test/netlab"
)

// rowLinkDown: the agents are up before the hosts at which they meet can be reached.
func rowLinkDown(s *site, c *hostsBackend) string {
	for _, h := range c.meets {
		s.unknown(h)
		s.lab.Host(h).Unplug()
	}
	agents := s.startAll(3, "--nnodes 3")
	for _, j := range agents {
		if slices.Contains(c.meets, s.hostOf(j)) {
			continue
		}
		if c.holder == nil {
			s.untilSays(j, "no route to host")
		} else {
			s.untilSays(j, "waiting")
		}
	}
	plugged := time.Now()
	for _, h := range c.meets {
		s.lab.Host(h).Plug()
	}
	up := s.up(plugged, 3)
	s.finish(agents...)
	return ms(up.Sub(plugged))
}

// unknown makes all other hosts ask for the hardware address of a host, so that there
// is no route to it while it does not answer; they soon know.
func (s *site) unknown(host int) {
	s.t.Helper()
	lost := s.lab.Host(host)
	batch := "neigh del " + lost.Addr + " dev eth0\n"
	if lost.Addr6 != "" {
		batch += "neigh del " + lost.Addr6 + " dev eth0\n"
	}
	for i, h := range s.lab.Hosts() {
		if i == host {
			continue
		}
		cmd := exec.Command("ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(batch)
		err := h.Start(cmd)
		if err == nil {
			err = cmd.Wait()
		}
		if err == nil {
			err = h.Do(func() error {
				for _, family := range []string{"ipv4", "ipv6"} {
					path := "/proc/sys/net/" + family + "/neigh/eth0/retrans_time_ms"
					if err := os.WriteFile(path, []byte("100"), 0); err != nil && lost.Addr6 != "" {
						return err
					}
				}
				return nil
			})
		}
		if err != nil {
			s.t.Fatalf("make %s unknown on %s: %v", lost.Name, h.Name, err)
		}
	}
}

// The network fails between the holder with most of the job, and the others with etcd, which are enough for
// --nnodes: they alone run, until all reach each other again.
func TestHostsSplit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		backend       string
		agents, least int
		here          func(holder int) []int
	}{
		{"etcd", 3, 1, func(holder int) []int { return []int{holder, (holder + 1) % 3} }},
		{"quorum", 5, 2, func(holder int) []int { return []int{3, 4, holder % 3} }}, // one of the three members
	} {
		t.Run(tt.backend, func(t *testing.T) {
			t.Parallel()
			if tt.agents > 3 && os.Getenv("MUSTER_E2E_LONG") == "" {
				t.Skip("MUSTER_E2E_LONG=1 runs it")
			}
			c := backend(t, tt.backend)
			s := newSite(t, tt.agents+c.hosts)
			s.conf = limit6
			c.prepare(s)
			agents := s.startAll(tt.agents, fmt.Sprintf("--nnodes %d:%d", tt.least, tt.agents))
			s.up(time.Time{}, tt.agents)
			here := tt.here(holder(s))
			between := func(do func(h, other *netlab.Host)) {
				for i := range s.lab.Hosts() {
					for _, k := range here {
						if !slices.Contains(here, i) {
							do(s.lab.Host(i), s.lab.Host(k))
						}
					}
				}
			}
			cut := time.Now()
			between((*netlab.Host).Cut)
			s.up(cut, tt.agents-len(here))
			for _, i := range here {
				s.untilSays(agents[i], fmt.Sprintf("while etcd does not answer, fewer than %d may be elsewhere", tt.least))
			}
			whole := time.Now()
			between((*netlab.Host).Heal)
			s.up(whole, tt.agents)
			s.finish(agents...)
		})
	}
}
