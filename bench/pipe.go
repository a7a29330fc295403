//go:build linux

package main

import (
	"fmt"
	"os"
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
