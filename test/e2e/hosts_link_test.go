//go:build linux

package e2e

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
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

// The network fails between the holder with one other host, which are most of the job, and the third
// one with etcd, which is enough for --nnodes: it alone runs, until all reach each other again.
func TestHostsSplit(t *testing.T) {
	t.Parallel()
	s := newSite(t, 6)
	s.conf = limit6
	backend(t, "etcd").prepare(s)
	agents := s.startAll(3, "--nnodes 1:3")
	s.up(time.Time{}, 3)
	here, there := []int{holder(s)}, []int{3, 4, 5}
	for i := range 3 {
		switch {
		case i == here[0]:
		case len(here) < 2:
			here = append(here, i)
		default:
			there = append(there, i)
		}
	}
	cut := time.Now()
	for _, i := range here {
		for _, k := range there {
			s.lab.Host(i).Cut(s.lab.Host(k))
		}
	}
	s.up(cut, 1)
	for _, i := range here {
		s.untilSays(agents[i], "while etcd does not answer, fewer than 1 may be elsewhere")
	}
	whole := time.Now()
	for _, i := range here {
		for _, k := range there {
			s.lab.Host(i).Heal(s.lab.Host(k))
		}
	}
	s.up(whole, 3)
	s.finish(agents...)
}
