package events

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// FileName is the name of the file in a log directory where no other is given.
const FileName = "events.jsonl"

// File is a sink that appends each event to a file as one line of JSON, with one
// write, so that several agents may share a file on one host (not over NFS).
// Make it with OpenFile. Its methods may be called concurrently; who opened it
// closes it.
//
// A disk that is full, or fails otherwise, costs events and not the job: the
// first loss is logged, and Close logs how many there were. Once there is space
// again, events are written again.
type File struct {
	path string
	log  *slog.Logger

	mu   sync.Mutex // guards the rest, and keeps the order of events
	file *os.File   // nil once closed
	torn bool       // the last line is incomplete
	lost int
}

// CheckFile says why OpenFile(path) would fail, as far as that can be seen
// without making anything.
func CheckFile(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return checkParent(path)
	case err != nil:
		return pathError(path, err)
	}
	if err := checkMode(path, info.Mode()); err != nil {
		return err
	}
	if unix.Access(path, unix.W_OK) != nil {
		return pathError(path, errors.New("the file is not writable"))
	}
	return nil
}

// checkParent looks at the nearest directory that is there; the others will be
// made.
func checkParent(path string) error {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir:
			continue
		case err != nil:
			return pathError(path, err)
		case !info.IsDir():
			return pathError(path, fmt.Errorf("%s is a file, not a directory", dir))
		case unix.Access(dir, unix.W_OK|unix.X_OK) != nil:
			return pathError(path, fmt.Errorf("directory %s is not writable", dir))
		}
		return nil
	}
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
		return pathError(path, errors.New("it is a FIFO, and the job would wait for whoever reads it"))
	}
	return pathError(path, fmt.Errorf("it is no regular file (%v)", mode.Type()))
}

// A PathError says why events cannot be written to a file.
type PathError struct {
	Path string
	Err  error
}

func (e *PathError) Error() string {
	return fmt.Sprintf("event file %s: %v; name a file that can be written with --event-log-file", e.Path, e.Err)
}

func (e *PathError) Unwrap() error { return e.Err }

func pathError(path string, err error) error {
	var bare *fs.PathError // says the path once more
	if errors.As(err, &bare) {
		err = bare.Err
	}
	return &PathError{Path: path, Err: err}
}

// OpenFile returns a sink that appends to the file at path, which is made, with
// the directories that it is in, if it is not there. The error is a *PathError.
// log gets what is lost; nil means slog.Default().
func OpenFile(path string, log *slog.Logger) (*File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, pathError(path, err)
	}
	return open(path, log, 0)
}

// CreateFile is OpenFile for a file that must be new, in a directory that is there: a
// link in its place is not followed.
func CreateFile(path string, log *slog.Logger) (*File, error) { return open(path, log, os.O_EXCL) }

func open(path string, log *slog.Logger, flags int) (*File, error) {
	if log == nil {
		log = slog.Default()
	}
	// O_NONBLOCK: a FIFO without a reader must not hold the agent up; it is refused.
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK|flags, 0o666)
	if err != nil {
		if info, statErr := os.Stat(path); statErr == nil && errors.Is(err, syscall.ENXIO) {
			return nil, checkMode(path, info.Mode())
		}
		return nil, pathError(path, err)
	}
	info, err := file.Stat()
	if err == nil {
		err = checkMode(path, info.Mode())
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return &File{path: path, log: log, file: file}, nil
}

// Path returns the file's path as it was given.
func (f *File) Path() string { return f.path }

// Record appends the event.
func (f *File) Record(e Event) { f.RecordLine(e) }

// RecordLine appends the event.
func (f *File) RecordLine(e Line) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return
	}
	var line []byte
	if f.torn {
		line = append(line, '\n')
	}
	end := len(line) // of what came before
	line = append(e.Append(line), '\n')
	n, err := f.file.Write(line)
	if err == nil {
		f.torn = false
		return
	}
	f.torn = n > end || f.torn && n < end
	f.lost++
	if f.lost == 1 {
		f.log.Warn("an event is lost, and others may be: it cannot be written; the job goes on", "file", f.path, "error", err)
	}
}

// Close closes the file. Events that come later are dropped. The error says that
// the system could not keep what it had taken.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	if f.lost > 0 {
		f.log.Warn("events were lost", "file", f.path, "events", f.lost)
	}
	if err != nil {
		return pathError(f.path, err)
	}
	return nil
}
