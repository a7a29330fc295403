package logs

import (
	"bytes"
	"context"
	"io"
	"sync"
)

// A Part is what an Attempt's workers write from one moment to another: rounds share an Attempt
// where workers live on from one to the next. Its bounds are offsets in the files, and Next sets the end of one
// and the beginning of the other to the same: each byte is in one Part, whenever it is read.
type Part struct {
	a    *Attempt
	rank map[int]int      // by local rank; of others it is that of the Attempt
	from map[string]int64 // where it begins in each file; nil: with the Attempt
	over context.Context  // ends once to is set, or with the Attempt
	end  context.CancelFunc

	mu sync.Mutex // guards the rest
	to map[string]int64
}

// Part begins the Attempt's first part, which has all until Next is called.
func (a *Attempt) Part() *Part { return a.part(nil, nil) }

func (a *Attempt) part(rank map[int]int, from map[string]int64) *Part {
	p := &Part{a: a, rank: rank, from: from}
	p.over, p.end = context.WithCancel(a.over)
	return p
}

// Next ends a part, and begins the one that follows, in which workers have other ranks, by local
// rank. It is called once. Each line is of one part.
func (p *Part) Next(rank map[int]int) *Part {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = map[string]int64{}
	for _, w := range p.a.workers {
		for _, path := range w.sink.paths() {
			if path != "" {
				p.to[path] = max(p.from[path], p.a.linesEnd(path))
			}
		}
	}
	p.end()
	return p.a.part(rank, p.to)
}

// limit is how many of n bytes that a stream has read of a file, at an offset, are of the part.
func (p *Part) limit(path string, off int64, n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.to == nil {
		return n
	}
	return int(max(0, min(int64(n), p.to[path]-off)))
}

// linesEnd is where the last whole line of a file ends, or the file if its last line is long.
func (a *Attempt) linesEnd(path string) int64 {
	f, info, err := a.run.open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	from := max(0, info.Size()-64<<10)
	buf, _ := io.ReadAll(io.NewSectionReader(f, from, info.Size()-from))
	if i := bytes.LastIndexByte(buf, '\n'); i >= 0 || from == 0 {
		return from + int64(i) + 1
	}
	return info.Size()
}
