//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/test/programs"
	"github.com/muster-run/muster/internal/test/pypeer"
)

// A hostsBackend is a way in which the agents of a job on many hosts meet.
type hostsBackend struct {
	name, backend string
	hosts         int // beside the three of the workers
	// prepare starts what the backend needs, and sets the agents' flags.
	prepare func(s *site)
	// endsWith0: host 0 holds the rendezvous, and the job cannot outlive it.
	endsWith0 bool
	// fixed: the number of hosts cannot change.
	fixed bool
	// holder returns the host that holds the rendezvous for now. Nil where that is
	// always host 3, which the job cannot outlive.
	holder func(s *site) int
	// meets are the hosts without which the agents cannot meet; members those that run
	// etcd.
	meets, members []int
	// keepsEnded: the store knows an ended job for good.
	keepsEnded bool
	// not is what the table has in rows in which there is nothing to test.
	not map[string]string
}

const (
	sameAs0    = "see rank 0"
	fixedHosts = "fixed"
)

var hostsBackends = []hostsBackend{
	{
		name: "c10d", backend: "c10d", endsWith0: true, prepare: meetAt(0), meets: []int{0},
		not: map[string]string{"holder of the rendezvous lost": sameAs0},
	},
	{
		name: "c10d, muster store", backend: "c10d", hosts: 1, meets: []int{3},
		prepare: func(s *site) {
			s.serve(3, "listening on", filepath.Join(bin, "muster"), "store", "--port", "29400")
			meetAt(3)(s)
		},
	},
	{
		name: "c10d, PyTorch's store", backend: "c10d", hosts: 1, meets: []int{3},
		prepare: func(s *site) {
			s.serve(3, "listening", pypeer.Python(s.t), "../../store/tcpstore/testdata/torchstore.py", "host3", "29400")
			meetAt(3)(s)
		},
		keepsEnded: true,
		not:        map[string]string{"drained, and replaced under its ID while it ends": "refused"},
	},
	{
		name: "static", backend: "static", endsWith0: true, fixed: true, meets: []int{0},
		prepare: func(s *site) {
			s.flags = func(host int) string {
				return fmt.Sprintf("--node-rank %d --master-addr host0 --master-port 29400 --rdzv-conf %s", host, s.conf)
			}
		},
		not: map[string]string{
			"holder of the rendezvous lost": sameAs0,
			"host joins":                    fixedHosts,
			"spare host":                    fixedHosts,
			"spare host, and the job fails": fixedHosts,
			"drained, and replaced under its ID while it ends": "waits, see TestAgainWhileTheJobEnds",
		},
	},
	{
		name: "etcd", backend: "etcd", hosts: 3, holder: holder, meets: []int{3, 4, 5}, members: []int{3, 4, 5},
		prepare: func(s *site) {
			quorumProgram(s.t)
			var members []*job
			for i := 3; i < 6; i++ {
				members = append(members, s.etcdMember(i))
			}
			for _, m := range members {
				s.untilSays(m, `"ready":true`)
			}
			s.flags = func(int) string {
				return "--rdzv-backend etcd --rdzv-endpoint host3:29400,host4:29400,host5:29400 --rdzv-conf " + s.conf
			}
		},
	},
	{
		name: "quorum", backend: "quorum", holder: holder, meets: []int{0}, members: []int{0, 1, 2},
		prepare: func(s *site) {
			quorumProgram(s.t)
			s.flags = func(int) string {
				return "--rdzv-backend quorum --rdzv-endpoint host0,host1,host2 --rdzv-conf " + s.conf
			}
		},
	},
}

// holder finds out which agent was elected to hold the rendezvous. What an agent has
// said is copied in the background.
func holder(s *site) int {
	s.t.Helper()
	for timeout := time.After(patience); ; {
		for _, j := range s.agents {
			for line := range strings.Lines(j.errs()) {
				if strings.Contains(line, "rendezvous held by") && strings.Contains(line, "mine=true") {
					return s.hostOf(j)
				}
			}
		}
		select {
		case <-s.wrote:
		case <-timeout:
			s.fatalf("no agent says that it holds the rendezvous")
		}
	}
}

var putQuorum = sync.OnceValue(func() error { return programs.Put(bin, "muster-quorum") })

// quorumProgram puts muster-quorum beside muster.
func quorumProgram(t testing.TB) {
	t.Helper()
	if err := putQuorum(); err != nil {
		t.Fatal(err)
	}
}

// etcdMember starts one of three members of etcd.
func (s *site) etcdMember(host int) *job {
	s.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Close()
	s.t.Cleanup(func() { w.Close() })
	fmt.Fprintf(w, `{"run_id":"cluster","name":"host%d:29400","members":["host3:29400","host4:29400","host5:29400"]}`+"\n", host)
	return onHost(s.t, s.lab.Host(host), s.wrote, errand{argv: []string{filepath.Join(bin, "muster-quorum"), "serve"}, stdin: r, env: s.env})
}

// backend returns the one of a name.
func backend(t testing.TB, name string) *hostsBackend {
	t.Helper()
	for i := range hostsBackends {
		if hostsBackends[i].name == name {
			return &hostsBackends[i]
		}
	}
	t.Fatalf("no backend %q", name)
	return nil
}

// meetAt makes the agents meet at a host, by the backend c10d.
func meetAt(host int) func(s *site) {
	return func(s *site) {
		s.flags = func(int) string {
			return fmt.Sprintf("--rdzv-backend c10d --rdzv-endpoint host%d:29400 --rdzv-conf %s", host, s.conf)
		}
	}
}
