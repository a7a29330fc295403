// Package jobfile keeps a file in the log directory of one agent's run that says
// how the job went on this host.
//
// The file has a line of JSON when the agent begins and a second one when it ends.
// In between the agent holds a lock on it (flock), which the system takes away
// however the agent ends. So a reader can tell three things apart: the job has ended
// and how, it still runs, or its agent is gone without a word. A line costs the agent no
// more than three system calls, and a reader asks no process.
//
// A reader trusts nothing: a file that is not a regular one, too large, or not what an
// agent writes is an error.
package jobfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/format/pyjson"
)

// Name is the file's.
const Name = "job.jsonl"

// version is that of the lines; it changes when a field changes its meaning or goes
// away.
const version = 1

// The values of End.Outcome: how a job ended on a host.
const (
	Succeeded = "succeeded"
	Failed    = "failed"
	Preempted = "preempted" // the whole job was told to stop
	Stopped   = "stopped"   // this host's agent was told to stop
	Left      = "left"      // the job continues without this host
)

// A Begin is the first line.
type Begin struct {
	RunID       string    `json:"run_id"`
	Title       string    `json:"title"` // what runs
	Host        string    `json:"host"`
	PID         int       `json:"pid"` // the agent's
	Started     time.Time `json:"started"`
	MaxRestarts int       `json:"max_restarts"`
	MaxNodes    int       `json:"max_nodes"` // 1: global ranks are local ranks
}

// An End is the second line.
type End struct {
	Outcome  string    `json:"outcome"`
	Cause    string    `json:"cause"` // in one line; "" where there is nothing to say
	Restarts int       `json:"restarts"`
	Ended    time.Time `json:"ended"`
}

// first is the first line.
type first struct {
	Version int `json:"version"`
	Begin
	Locked bool `json:"locked"`
}

// A Writer is an agent's. Its methods are for one goroutine. A nil Writer writes
// nothing.
type Writer struct {
	dir  string
	file *os.File
}

// Create makes the file in a directory, takes the lock and writes the first line.
// Where the file system has no locks a reader will not know whether the agent lives.
func Create(dir string, b Begin) (*Writer, error) {
	file, err := os.OpenFile(filepath.Join(dir, Name), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, err
	}
	locked := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	b.RunID, b.Title, b.Host = bound(b.RunID), bound(b.Title), bound(b.Host)
	line := pyjson.AppendStruct(nil, first{version, b, locked})
	if _, err := file.Write(append(line, '\n')); err != nil {
		return nil, errors.Join(err, os.Remove(file.Name()), file.Close())
	}
	return &Writer{dir, file}, nil
}

// End writes the second line and gives the lock up. With tidy the file is removed
// instead if no other is in its directory or below.
func (w *Writer) End(e End, tidy bool) error {
	if w == nil {
		return nil
	}
	if tidy && w.alone() {
		return errors.Join(os.Remove(w.file.Name()), w.file.Close())
	}
	e.Outcome, e.Cause = bound(e.Outcome), bound(e.Cause)
	line := pyjson.AppendStruct(nil, e)
	_, err := w.file.Write(append(line, '\n'))
	return errors.Join(err, w.file.Close())
}

// alone reports whether there is no other file.
func (w *Writer) alone() bool {
	err := filepath.WalkDir(w.dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && path != w.file.Name() {
			return fs.ErrExist
		}
		return err
	})
	return err == nil
}

// maxText bounds a value, in bytes, so that a line has a bound.
const maxText = 8 << 10

func bound(s string) string { return s[:min(len(s), maxText)] }
