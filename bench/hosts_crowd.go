//go:build linux

package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// measureCrowd lets many clients meet at one `muster store`. The floor is as many
// connections to an echo server, with one message there and back.
func measureCrowd(l *lab) ([]*row, error) {
	many := l.most()
	track := &row{What: "hosts: bytes on the wire for each of 250 rendezvous clients at one `muster store`", Unit: count,
		GoalText: "linear in N", Note: "TCP payload in both directions, over all connections of a client"}
	thousand := &row{What: "hosts: 1,000 rendezvous clients meet at one `muster store`", Goal: 1,
		Note: "from the first client's call of Next to the last one's return, two connections each; the floor's clients have one each, and one message there and back"}
	crowds := []struct {
		n, rounds   int
		bytes, took *row
	}{
		{250, l.n(5, 2), track, nil},
		{500, l.n(5, 2), &row{What: "hosts: the same of 500", Unit: count}, nil},
		{1000, l.n(5, 2), &row{What: "hosts: the same of 1,000", Unit: count}, thousand},
		{many, l.n(3, 1), &row{What: "hosts: the same of " + thousands(many), Unit: count},
			&row{What: "hosts: " + thousands(many) + " rendezvous clients meet", Goal: 15}},
	}
	peak := &row{What: "hosts: peak memory of the server of " + thousands(many), Unit: size, Goal: 500 << 20}
	if many < 10_000 {
		peak.Note = fmt.Sprintf("of the 10,000 that were to be, as many as fit into the %s descriptors that a process may have here", thousands(l.descriptors()))
	}
	var rows []*row
	for _, c := range crowds {
		for range c.rounds {
			took, bytes, most, err := l.crowdOnce(c.n)
			if err != nil {
				return nil, fmt.Errorf("%d clients: %w", c.n, err)
			}
			c.bytes.add(muster, math.Round(float64(bytes)/float64(c.n)))
			if c.took == nil {
				continue
			}
			c.took.add(muster, took)
			if c.n == many {
				peak.add(muster, most)
			}
			if took, err = l.connectOnce(c.n); err != nil {
				return nil, fmt.Errorf("%s: %w", floor, err)
			}
			c.took.add(floor, took)
		}
		rows = append(rows, c.bytes)
	}
	return append(rows, thousand, crowds[3].took, peak), nil
}

// most is how many clients a server can have, up to 10,000.
func (l *lab) most() int { return min(10_000, (l.descriptors()-100)/2) }

// descriptors is how many files a process may have open.
func (*lab) descriptors() int {
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) != nil {
		return 1024
	}
	return int(min(files.Max, math.MaxInt32))
}

func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}

// crowdOnce lets n clients meet at a server of their own: how long it took, the
// bytes between them, and the server's peak memory.
func (l *lab) crowdOnce(n int) (took float64, bytes int64, peak float64, err error) {
	s, err := l.serveOn("0.0.0.0", muster)
	if err != nil {
		return 0, 0, 0, err
	}
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		return 0, 0, 0, err
	}
	c, err := l.gather(port, n, false)
	if err != nil {
		return 0, 0, 0, err
	}
	if err := c.meet(); err != nil {
		return 0, 0, 0, fmt.Errorf("%w: %s", err, s.job.console())
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.job.pid))
	if err != nil {
		return 0, 0, 0, err
	}
	if err := c.finish(); err != nil {
		return 0, 0, 0, err
	}
	return float64(c.last-c.first) / 1e9, c.bytes, kilobytes(status, "VmHWM:"), s.stop()
}

// connectOnce opens n connections to an echo server of their own.
func (l *lab) connectOnce(n int) (float64, error) {
	s, err := l.serve(floor)
	if err != nil {
		return 0, err
	}
	took, err := s.connect(n)
	return took, errors.Join(err, s.stop())
}

// A crowd is rendezvous clients of muster, in one process or several.
type crowd struct {
	processes   []*piped
	first, last int64 // first join, last result
	bytes       int64 // over all the clients' connections
}

// gather starts processes with at most a thousand clients each, n in all, that are
// ready to join; with hosts one of them holds the rendezvous at the port. Each
// process has an address of this machine of its own for it: with all connections
// to one address the kernel's search for free ports would be most of what is measured.
func (l *lab) gather(port string, n int, hosts bool) (*crowd, error) {
	const each = 1000
	c := &crowd{}
	for left := n; left > 0; left -= each {
		endpoint := fmt.Sprintf("127.0.0.%d:%s", len(c.processes)+1, port)
		p, err := l.pipe([]string{l.meet, "job1", endpoint, strconv.Itoa(min(each, left)), strconv.Itoa(n), strconv.FormatBool(hosts)})
		if err != nil {
			return nil, err
		}
		c.processes = append(c.processes, p)
	}
	for _, p := range c.processes {
		var ready string
		if err := p.scan(&ready); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// meet lets the clients join and waits until all have met.
func (c *crowd) meet() error {
	for _, p := range c.processes {
		if _, err := p.in.WriteString("\n"); err != nil {
			return err
		}
	}
	for i, p := range c.processes {
		var first, last, bytes int64
		if err := p.scan(&first, &last, &bytes); err != nil {
			return err
		}
		if i == 0 || first < c.first {
			c.first = first
		}
		c.last = max(c.last, last)
		c.bytes += bytes
	}
	return nil
}

// finish ends the clients.
func (c *crowd) finish() error {
	for _, p := range c.processes {
		if err := p.finish(); err != nil {
			return err
		}
	}
	return nil
}
