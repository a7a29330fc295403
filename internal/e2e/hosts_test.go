//go:build linux

package e2e

import (
	"flag"
	"fmt"
	"testing"
	"time"
)

var updateReliability = flag.Bool("update-reliability", false, "measure again and write docs/reliability.md")

// A hostsCarrier is a way in which the agents of a job on many hosts meet.
type hostsCarrier struct {
	name  string
	hosts int // beside the three of the workers
	// prepare starts what the carrier needs, and sets the agents' flags.
	prepare func(s *site)
	// endsWith0: the job cannot outlive host 0.
	endsWith0 bool
	// fixed: the number of hosts cannot change.
	fixed bool
}

var hostsCarriers = []hostsCarrier{
	{name: "c10d", endsWith0: true, prepare: func(s *site) {
		s.flags = func(int) string { return "--rdzv-backend c10d --rdzv-endpoint host0:29400 --rdzv-conf " + limit3 }
	}},
}

// A hostsRow is something that happens to a job, and what is to follow.
type hostsRow struct {
	name string
	run  func(s *site, c *hostsCarrier) string
}

var hostsRows = []hostsRow{
	{"start", rowStart},
	{"worker failure, restarts left", rowRestart},
	{"worker failure, no restarts left", rowFail},
}

// TestHosts is the matrix of carriers and events.
func TestHosts(t *testing.T) {
	t.Parallel()
	table := newHostsTable()
	t.Run("matrix", func(t *testing.T) {
		for _, c := range hostsCarriers {
			for _, row := range hostsRows {
				t.Run(c.name+"/"+row.name, func(t *testing.T) {
					if !*updateReliability {
						t.Parallel()
					}
					s := newSite(t, 3+c.hosts)
					s.env = []string{envBoard + "=" + s.board.path, "MUSTER_E2E_DIR=" + s.dir}
					c.prepare(s)
					text := row.run(s, &c)
					table.set(c.name, row.name, text)
					t.Log(text)
				})
			}
		}
	})
	t.Log("\n" + table.String())
}

// ms is a duration as the table has it.
func ms(d time.Duration) string {
	if d >= 10*time.Second {
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	if d >= time.Second {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%d ms", d.Milliseconds())
}

func rowStart(s *site, _ *hostsCarrier) string {
	began := time.Now()
	agents := s.startAll(3, "--nnodes 3")
	up := s.await(began, 3, "up", 3)
	s.agree(up)
	s.finish(agents...)
	return "all workers run " + ms(last(up).Sub(began)) + " after the first agent was started"
}

// agree checks that workers have different ranks and one meeting point.
func (s *site) agree(up []hostReport) {
	s.t.Helper()
	ranks, hosts := map[int]bool{}, map[string]bool{}
	for _, r := range up {
		ranks[r.rank], hosts[r.host] = true, true
		if r.master != up[0].master || r.world != len(up) || r.rank >= r.world {
			s.fatalf("workers do not agree: %+v", up)
		}
	}
	if len(ranks) != len(up) || len(hosts) != len(up) {
		s.fatalf("workers share ranks or hosts: %+v", up)
	}
}

func rowRestart(s *site, _ *hostsCarrier) string {
	agents := s.startAll(3, "--nnodes 3 --max-restarts 1")
	s.await(time.Time{}, 3, "up", 3)
	failed := time.Now()
	s.order(1, 3)
	term := s.await(failed, 2, "term", 3)
	up := s.await(failed, 3, "up", 3)
	s.agree(up)
	for _, r := range up {
		if r.restart != 1 {
			s.fatalf("the second attempt has restart count %d, want 1: %+v", r.restart, r)
		}
	}
	s.finish(agents...)
	return "the other hosts' workers are stopped after " + ms(last(term).Sub(failed)) + ", all run again after " + ms(last(up).Sub(failed))
}

func rowFail(s *site, _ *hostsCarrier) string {
	agents := s.startAll(3, "--nnodes 3")
	up := s.await(time.Time{}, 3, "up", 3)
	rank := 0
	for _, r := range up {
		if r.host == "host1" {
			rank = r.rank
		}
	}
	failed := time.Now()
	s.order(1, 3)
	term := s.await(failed, 2, "term", 3)
	ended := s.want(1, agents...)
	for _, j := range agents {
		j.says(fmt.Sprintf("rank %d", rank), "host1", "exit code 3")
	}
	return "the other hosts' workers are stopped after " + ms(last(term).Sub(failed)) + ", all agents end with the cause after " + ms(ended.Sub(failed))
}
