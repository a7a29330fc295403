//go:build linux

package main

import (
	"fmt"

	"golang.org/x/sync/errgroup"
)

// measureAgents runs N whole agents on this machine, with one /bin/true each. The
// floor is as many processes that start one and wait for it.
func measureAgents(l *lab) ([]*row, error) {
	var rows []*row
	for _, of := range []struct {
		n     int
		goal  float64
		times map[string]int // rounds; torchrun's take from seconds to half a minute
	}{
		{2, 0.1, map[string]int{torchrun: l.n(2, 1), muster: 20, floor: 20}},
		{8, 0.2, map[string]int{torchrun: 1, muster: 10, floor: 10}},
		{16, 0.4, map[string]int{torchrun: l.n(1, 0), muster: 10, floor: 10}},
	} {
		r := &row{What: fmt.Sprintf("hosts: %d agents run /bin/true each", of.n), Chart: fmt.Sprintf("%d agents run /bin/true", of.n), Bar: map[int]string{8: "a job of 8 hosts that does nothing"}[of.n], Goal: of.goal}
		for _, c := range l.contenders() {
			for range of.times[c] {
				took, err := l.agentsOnce(c, of.n)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", c, err)
				}
				r.add(c, took)
			}
		}
		rows = append(rows, r)
	}
	rows[0].Note = "`--nnodes N --rdzv-backend c10d`, all on this machine; from the start of the first agent to the end of the last"
	return rows, nil
}

// hostArgv is the command line of one agent of a job on several hosts, each of which
// has an address. torchrun gives out ranks in the order of these, so that the first
// agent has rank 0; with one address for all that would depend on PIDs.
func (l *lab) hostArgv(contender string, host int, port, nodes string, flags []string, command ...string) []string {
	if contender == floor {
		return l.argv(floor, 1, nil, command...)
	}
	argv := []string{l.torchrunBin}
	if contender == muster {
		argv = []string{l.musterBin, "run"}
	}
	argv = append(argv, "--nnodes="+nodes, "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:"+port, "--rdzv-id=job"+port,
		fmt.Sprintf("--local-addr=127.0.0.%d", 100+host))
	argv = append(argv, flags...)
	return append(append(argv, "--no-python"), command...)
}

// agentsOnce is the time from the start of the first of n agents to the end of the
// last.
func (l *lab) agentsOnce(contender string, n int) (float64, error) {
	port, err := freePort()
	if err != nil {
		return 0, err
	}
	jobs := make([]*job, n)
	for i := range jobs {
		if jobs[i], err = l.start(l.hostArgv(contender, i, port, fmt.Sprint(n), nil, "/bin/true"), console{}); err != nil {
			return 0, err
		}
	}
	var g errgroup.Group
	for _, j := range jobs {
		g.Go(func() error { return j.expect(0) })
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	var end int64
	for _, j := range jobs {
		end = max(end, j.end)
		j.discard()
	}
	return float64(end-jobs[0].begin) / 1e9, nil
}
