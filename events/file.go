package events

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/muster-run/muster/internal/files/safeopen"
)

// file is a sink that appends each line to a file as JSON, with one write, so that
// several agents may share a file on one host (not over NFS).
//
// A disk that is full, or fails otherwise, costs events and not the job: the
// first loss is logged, and Close logs how many there were. Once there is space
// again, events are written again.
type file struct {
	path string
	log  *slog.Logger

	mu   sync.Mutex // guards the rest, and keeps the order of lines
	to   *os.File   // nil once closed
	torn bool       // the last line is incomplete
	lost int
}

// checkMode refuses what would hold the agent up, such as a FIFO without a
// reader.
func checkMode(path string, mode fs.FileMode) error {
	switch {
	case mode.IsRegular(), mode.Type() == fs.ModeDevice|fs.ModeCharDevice:
		return nil
	case mode.IsDir():
		return pathError(path, errors.New("it is a directory"))
	case mode.Type() == fs.ModeNamedPipe:
		return pathError(path, errors.New("it is a FIFO, and the job would wait for a reader"))
	}
	return pathError(path, fmt.Errorf("it is not a regular file (%v)", mode.Type()))
}

// pathError says why events cannot be written to a file.
func pathError(path string, err error) error {
	return fmt.Errorf("event file %s: %w; name a file that can be written with events.Config.File", path,
		safeopen.Bare(err))
}

// open opens a file to append to. With O_EXCL in flags it must be new, in a directory that is
// there: a link in its place is not followed. Otherwise it is made, with the directories that it
// is in, if it is not there. log gets what is lost; nil means slog.Default().
func open(path string, log *slog.Logger, flags int) (*file, error) {
	if flags&os.O_EXCL == 0 {
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return nil, pathError(path, err)
		}
	}
	// O_NONBLOCK: a FIFO without a reader must not hold the agent up; it is refused.
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK|flags, 0o666)
	if err != nil {
		if info, statErr := os.Stat(path); statErr == nil && errors.Is(err, syscall.ENXIO) {
			return nil, checkMode(path, info.Mode())
		}
		return nil, pathError(path, err)
	}
	info, err := to.Stat()
	if err == nil {
		err = checkMode(path, info.Mode())
	}
	if err != nil {
		to.Close()
		return nil, err
	}
	return &file{path: path, log: cmp.Or(log, slog.Default()), to: to}, nil
}

// Record appends a line.
func (f *file) Record(l Line) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.to == nil {
		return
	}
	var line []byte
	if f.torn {
		line = append(line, '\n')
	}
	end := len(line) // of what came before
	line = append(l.Append(line), '\n')
	n, err := f.to.Write(line)
	if err == nil {
		f.torn = false
		return
	}
	f.torn = n > end || f.torn && n < end
	f.lost++
	if f.lost == 1 {
		f.log.Warn("cannot write an event, so it is lost, and others may be; the job continues", "file", f.path, "error", err)
	}
}

// Close closes the file. Events that come later are dropped. The error says that
// the system could not keep what it had taken.
func (f *file) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.to == nil {
		return nil
	}
	err := f.to.Close()
	f.to = nil
	if f.lost > 0 {
		f.log.Warn("events were lost", "file", f.path, "events", f.lost)
	}
	if err != nil {
		return pathError(f.path, err)
	}
	return nil
}
