//go:build linux

package e2e

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
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
