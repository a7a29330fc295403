//go:build linux

package e2e

import (
	"net"
	"testing"
	"time"
)

// The script of the host that holds the rendezvous may call it localhost, by the unspecified
// address or not at all, as long as the others name that host. The workers of each host meet
// at an address that they reach.
func TestHostsHolderNamesItself(t *testing.T) {
	t.Parallel()
	type form struct{ name, flags string }
	forms := []form{
		{"static nothing", "--master-port 29400"},
		{"static localhost", "--master-addr localhost --master-port 29400"},
		{"static 0.0.0.0", "--master-addr 0.0.0.0 --master-port 29400"},
		{"c10d localhost", "--rdzv-backend c10d --rdzv-endpoint localhost:29400"},
		{"c10d 127.0.0.1", "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:29400"},
		{"c10d 0.0.0.0", "--rdzv-backend c10d --rdzv-endpoint 0.0.0.0:29400"},
		{"c10d ::", "--rdzv-backend c10d --rdzv-endpoint [::]:29400"},
	}
	for i, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			static := i < 3
			s := newSite(t, 2)
			s.env = []string{"LOGLEVEL=WARNING"}
			s.flags = func(host int) string {
				switch {
				case host == 0 && static:
					return f.flags + " --node-rank 0"
				case host == 0:
					return f.flags
				case static:
					return "--master-addr host0 --master-port 29400 --node-rank 1"
				}
				return "--rdzv-backend c10d --rdzv-endpoint host0:29400"
			}
			agents := []*job{s.start(0, "--nnodes 2"), s.start(1, "--nnodes 2")}
			for _, r := range s.running(time.Time{}, 2) {
				host, _, err := net.SplitHostPort(r.master)
				if err != nil {
					t.Fatal(err)
				}
				ip := net.ParseIP(host)
				if ip != nil && ip.IsUnspecified() || r.host == "host1" && (host == "localhost" || ip != nil && ip.IsLoopback()) {
					s.fatalf("the workers of %s meet at %s", r.host, r.master)
				}
			}
			s.finish(agents...)
			agents[0].says("the endpoint is a loopback address")
			agents[1].saysNot("the endpoint is a loopback address")
		})
	}
}
