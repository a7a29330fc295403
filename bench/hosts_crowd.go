//go:build linux

package main

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

// A piped process is spoken to over its standard streams.
type piped struct {
	job *job
	in  *os.File
	out *os.File
}

// pipe starts a process.
func (l *lab) pipe(argv []string) (*piped, error) {
	stdin, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	out, stdout, err := os.Pipe()
	if err != nil {
		in.Close()
		return nil, err
	}
	defer stdout.Close()
	j, err := l.start(argv, console{stdin: stdin, stdout: stdout})
	if err != nil {
		in.Close()
		out.Close()
		return nil, err
	}
	return &piped{job: j, in: in, out: out}, out.SetReadDeadline(time.Now().Add(patience))
}

// scan reads words that the process prints.
func (p *piped) scan(words ...any) error {
	if _, err := fmt.Fscanln(p.out, words...); err != nil {
		return fmt.Errorf("process %d says nothing more: %w: %s", p.job.pid, err, p.job.console())
	}
	return nil
}

// finish closes the process's standard input and waits for its end.
func (p *piped) finish() error {
	defer p.job.discard()
	defer p.out.Close()
	p.in.Close()
	return p.job.expect(0)
}

// A crowd is rendezvous clients of muster, in one process or several.
type crowd struct {
	processes   []*piped
	first, last int64 // first join, last result
	bytes       int64 // over all the clients' connections
}

// gather starts processes with at most each clients, n in all, that are ready to
// join; with hosts one of them holds the rendezvous at the endpoint.
func (l *lab) gather(endpoint string, n, each int, hosts bool) (*crowd, error) {
	c := &crowd{}
	for left := n; left > 0; left -= each {
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
