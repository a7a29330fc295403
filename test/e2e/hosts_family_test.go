//go:build linux

package e2e

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Hosts whose names have addresses of both kinds, of which one is not let through:
// what is sent there vanishes. They meet all the same, soon, and so do their workers.
func TestHostsOneFamily(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ backend, lost, want string }{
		{"c10d", "IPv6", "10.77.0.1"},
		{"c10d", "IPv4", "fd77::1"},
		{"quorum", "IPv6", "10.77.0.1"},
		{"quorum", "IPv4", "fd77::1"},
	} {
		t.Run(tt.backend+" without "+tt.lost, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, 3)
			if s.lab.Host(0).Addr6 == "" {
				t.Skip("the kernel has no IPv6")
			}
			s.conf = limit9
			backend(t, tt.backend).prepare(s)
			s.lose(tt.lost)
			began := time.Now()
			agents := s.startAll(3, "--nnodes 3")
			up := s.running(time.Time{}, 3)
			s.meetAtAddr(tt.want, up)
			t.Logf("all workers run after %s", ms(last(up).Sub(began)))
			s.finish(agents...)
		})
	}
}

// lose makes packets of a family vanish between all hosts: they go to a hardware
// address that none of them has.
func (s *site) lose(family string) {
	s.t.Helper()
	for _, h := range s.lab.Hosts() {
		var batch strings.Builder
		for _, o := range s.lab.Hosts() {
			addr := o.Addr
			if family == "IPv6" {
				addr = o.Addr6
			}
			if o != h {
				batch.WriteString("neigh replace " + addr + " lladdr 02:77:00:00:00:01 nud permanent dev eth0\n")
			}
		}
		cmd := exec.Command("ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(batch.String())
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		err := h.Start(cmd)
		if err == nil {
			err = cmd.Wait()
		}
		if err != nil {
			s.t.Fatalf("lose %s on %s: %v\n%s", family, h.Name, err, out.String())
		}
	}
}
