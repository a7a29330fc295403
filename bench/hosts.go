//go:build linux

package main

import (
	"fmt"
	"net"
	"slices"
	"strconv"

	"golang.org/x/sync/errgroup"
)

// measureHosts measures jobs on many hosts, with all hosts on this machine: how
// clients and whole agents meet, how many of them one server bears, and how soon
// a job acts on what happens to one of its hosts.
func measureHosts(l *lab) ([]*row, error) {
	var rows []*row
	for _, measure := range []func(*lab) ([]*row, error){measureMeet, measureAgents, measureCrowd, measureDeaths, measureChange} {
		some, err := measure(l)
		if err != nil {
			return nil, err
		}
		rows = append(rows, some...)
	}
	return rows, nil
}

// measureMeet lets N rendezvous clients meet, of which one holds the rendezvous.
// torchrun's are threads of one process, with connections that are there before;
// the floor is as many connections with one echo each.
func measureMeet(l *lab) ([]*row, error) {
	sizes := []int{2, 8, 16, 64}
	goals := []float64{0.020, 0.020, 0.030, 0.080}
	var rows []*row
	for i, n := range sizes {
		rows = append(rows, &row{What: fmt.Sprintf("hosts: %d rendezvous clients meet", n),
			Chart: fmt.Sprintf("%d rendezvous clients meet", n), Goal: goals[i]})
	}
	rows[0].Note = "c10d, min = max nodes; from the first call of Next to the last one's return, in one process; muster's includes starting the server and connecting, torchrun's does not"
	if err := l.meetTorch(sizes, rows, l.n(3, 1)); err != nil {
		return nil, fmt.Errorf("%s: %w", torchrun, err)
	}
	echo, err := l.serve(floor)
	if err != nil {
		return nil, err
	}
	for range l.n(20, 5) {
		for i, n := range sizes {
			for _, c := range l.contenders() {
				var took float64
				switch c {
				case muster:
					took, err = l.meetOnce(n)
				case floor:
					took, err = echo.connect(n)
				default:
					continue
				}
				if err != nil {
					return nil, fmt.Errorf("%s: %w", c, err)
				}
				rows[i].add(c, took)
			}
		}
	}
	return rows, echo.stop()
}

// meetTorch runs all rounds of PyTorch's clients in one process.
func (l *lab) meetTorch(sizes []int, rows []*row, rounds int) error {
	if l.python == "" {
		return nil
	}
	argv := []string{l.python, l.meetPy}
	for _, n := range slices.Repeat(sizes, rounds) {
		argv = append(argv, strconv.Itoa(n))
	}
	p, err := l.pipe(argv)
	if err != nil {
		return err
	}
	for i := range len(sizes) * rounds {
		var took float64
		if err := p.scan(&took); err != nil {
			return err
		}
		rows[i%len(sizes)].add(torchrun, took)
	}
	return p.finish()
}

// meetOnce is the time in which n of muster's clients meet in a new process.
func (l *lab) meetOnce(n int) (float64, error) {
	port, err := freePort()
	if err != nil {
		return 0, err
	}
	c, err := l.gather(port, n, true)
	if err != nil {
		return 0, err
	}
	if err := c.meet(); err != nil {
		return 0, err
	}
	return float64(c.last-c.first) / 1e9, c.finish()
}

// connect opens n connections at once, with one message there and back over each.
func (s *server) connect(n int) (float64, error) {
	clients := make([]*client, n)
	var g errgroup.Group
	begin := now()
	for i := range clients {
		g.Go(func() (err error) {
			clients[i], err = s.dial()
			return err
		})
	}
	err := g.Wait()
	took := float64(now()-begin) / 1e9
	for _, c := range clients {
		if c != nil {
			c.Close()
		}
	}
	return took, err
}

// freePort returns a port of this machine that nobody listens at.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
