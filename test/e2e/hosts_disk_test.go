//go:build linux

package e2e

import (
	"context"
	"testing"
)

// Hosts of a quorum whose disks are full end with an error that says so.
func TestHostsFullDisk(t *testing.T) {
	t.Parallel()
	s := newSite(t, 3)
	full := t.TempDir()
	for _, h := range s.lab.Hosts() {
		if out, err := h.Command(context.Background(), "mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", full).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", h.Name, err, out)
		}
	}
	s.conf = "join_timeout=20,keep_alive_interval=3,data_dir=" + full
	backend(t, "quorum").prepare(s)
	agents := s.startAll(3, "--nnodes 3")
	s.want(1, agents...)
	for _, j := range agents {
		j.says("data directory "+full, "a member of the quorum needs 16 MiB", "data_dir").saysNot("goroutine")
	}
}
