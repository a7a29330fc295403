package events

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
)

// FileName is the name of the file in a log directory where no other is given.
const FileName = "events.jsonl"

// handlers are the names that a Config's Handler may have.
// Source: get_logging_handler in elastic/events/handlers.py, but for file.
const (
	handlerNull    = "null"
	handlerConsole = "console"
	handlerRdzv    = "dynamic_rendezvous" // torch's own name for one more null
	handlerFile    = "file"
)

// A Config says where events go.
type Config struct {
	// Handler is null (also ""), console, dynamic_rendezvous (as null), or file, which
	// makes a new FileName in LogDir unless there is a File.
	Handler string
	// Console gets Events, but no other Lines, if Handler is console: what torchrun prints.
	Console io.Writer
	// File gets all Lines, whatever the Handler is; "" means none. It is made, with
	// the directories that it is in, if it is not there. Several agents of a host may
	// share it.
	File   string
	LogDir string // os.DevNull stands for none
	// Sink gets all Lines, too; nil means no such sink. It stays the caller's.
	Sink Sink
	// Logger gets what is lost. Default slog.Default().
	Logger *slog.Logger
}

// Check says what is wrong with a Config, without a look at files.
func (cfg *Config) Check() error {
	if cfg.Handler == handlerFile && cfg.File == "" && cfg.LogDir == os.DevNull {
		return fmt.Errorf("there is no log directory for %s: name a file with events.Config.File, or a directory with "+
			"events.Config.LogDir", FileName)
	}
	return cfg.checkHandler()
}

func (cfg *Config) checkHandler() error {
	switch cfg.Handler {
	case "", handlerNull, handlerConsole, handlerRdzv, handlerFile:
		return nil
	}
	return fmt.Errorf("event log handler %q is not known, and handlers registered in Python cannot be loaded; "+
		"want null, console (JSON lines on stderr), dynamic_rendezvous (as null) or file", cfg.Handler)
}

// A Recorder is the Sink that a Config describes. Make it with Open; who opened it
// closes it. Its methods may be called concurrently.
type Recorder struct {
	sinks []Sink
	file  *file // one of sinks; nil if there is none
}

// Open returns a Recorder. The error says that there is no such handler, or why there
// can be no file.
func Open(cfg Config) (*Recorder, error) {
	err := cfg.checkHandler()
	switch {
	case err != nil:
		return nil, err
	case cfg.Handler == handlerConsole && cfg.Console == nil:
		return nil, errors.New("events: Handler is console, and Console is nil; want a writer, such as os.Stderr")
	case cfg.Handler == handlerFile && cfg.File == "" && cfg.LogDir == "":
		return nil, errors.New("events: Handler is file, and neither File nor LogDir says where; set one of them")
	}
	r := &Recorder{}
	if cfg.Handler == handlerConsole {
		r.sinks = append(r.sinks, &console{w: cfg.Console})
	}
	switch {
	case cfg.File != "":
		r.file, err = open(cfg.File, cfg.Logger, 0)
	case cfg.Handler == handlerFile:
		r.file, err = open(filepath.Join(cfg.LogDir, FileName), cfg.Logger, os.O_EXCL)
	}
	if err != nil {
		return nil, err
	}
	if r.file != nil {
		r.sinks = append(r.sinks, r.file)
	}
	if cfg.Sink != nil {
		r.sinks = append(r.sinks, cfg.Sink)
	}
	return r, nil
}

// Record hands a line to all sinks; nil is none.
func (r *Recorder) Record(l Line) {
	if l == nil {
		return
	}
	for _, s := range r.sinks {
		s.Record(l)
	}
}

// Close closes the file; lines that come later are not in it. The error says that the
// system could not keep what it had taken.
func (r *Recorder) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// console prints each Event as one line of JSON, with one Write.
type console struct {
	mu sync.Mutex // one line at a time
	w  io.Writer
}

func (c *console) Record(l Line) {
	e, ok := l.(Event)
	if !ok {
		return
	}
	line := append(e.Append(nil), '\n')
	c.mu.Lock()
	defer c.mu.Unlock()
	c.w.Write(line) // a console that is gone is no reason to stop a job
}
