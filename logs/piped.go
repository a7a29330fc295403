package logs

import (
	"io"
	"log/slog"
	"os"
	"reflect"
	"sync/atomic"
	"time"
)

// A piped is the way to a console that is not a file.
type piped struct {
	in, out *os.File
	closing atomic.Bool
	done    chan struct{}
}

// openConsole opens the ways to Config.Stdout and Config.Stderr.
func (r *Run) openConsole() (err error) {
	if r.outFile, err = r.file(r.cfg.Stdout); err != nil {
		return err
	}
	r.stdout, r.stderr = newConsole(r.outFile), nil
	if sameWriter(r.cfg.Stdout, r.cfg.Stderr) {
		r.errFile = r.outFile
	} else if r.errFile, err = r.file(r.cfg.Stderr); err != nil {
		return err
	}
	if r.stderr = r.stdout; !sameFile(r.outFile, r.errFile) {
		r.stderr = newConsole(r.errFile)
	}
	return nil
}

// file is w, or what leads to it.
func (r *Run) file(w io.Writer) (*os.File, error) {
	if f, ok := w.(*os.File); ok {
		return f, nil
	}
	out, in, err := relayPipe()
	if err != nil {
		return nil, err
	}
	p := &piped{in: in, out: out, done: make(chan struct{})}
	r.pipes = append(r.pipes, p)
	go p.copy(w, r.log)
	return in, nil
}

// copy hands to w what comes. Workers do not notice if w takes nothing any more.
func (p *piped) copy(w io.Writer, log *slog.Logger) {
	defer close(p.done)
	buf := make([]byte, 32<<10)
	for {
		if p.closing.Load() {
			_ = p.out.SetReadDeadline(time.Now().Add(strayTime))
		}
		n, err := p.out.Read(buf)
		if n > 0 && w != nil {
			if _, werr := w.Write(buf[:n]); werr != nil {
				log.Warn("the console takes no more output of the workers", "error", werr)
				w = nil
			}
		}
		if err != nil {
			return
		}
	}
}

// strayTime is how long a process that got away with the other end may be silent until
// it is not waited for.
const strayTime = time.Second

// close waits until all has been copied.
func (p *piped) close() {
	p.in.Close()
	p.closing.Store(true)
	_ = p.out.SetReadDeadline(time.Now().Add(strayTime))
	<-p.done
	p.out.Close()
}

func sameWriter(a, b io.Writer) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}
