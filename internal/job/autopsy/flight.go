package autopsy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/files/safeopen"
)

// FlightName is what the files of workers' flight recorders are called where the agent gives them names.
const FlightName = "/flight_rank_"

// maxFlight bounds what is kept of one flight recorder's file.
const maxFlight = 16 << 20

const (
	// lookEvery is how often a file that is awaited is looked at, settled how long
	// it must then stay as it is.
	lookEvery = 10 * time.Millisecond
	settled   = 50 * time.Millisecond
)

// A Flight is what torch's flight recorder said about its collectives.
type Flight struct {
	// Source is "the worker" or "pipe".
	Source string `json:"source"`
	// File is the file's name beside the report, "" before WriteDir or if there is
	// none. Worker is the file that the worker wrote itself.
	File   string `json:"file,omitempty"`
	Worker string `json:"worker_file,omitempty"`
	Bytes  int    `json:"bytes"`
	// Problem says why there is nothing.
	Problem string `json:"problem,omitempty"`

	data  []byte
	taken time.Time // zero if that is not known
}

// A testimony is what package witness has got from a worker: a dump for each of PyTorch's recorders,
// and the stacks.
type testimony struct {
	Dumps   [][]byte `json:"dumps"` // in base64
	Threads []Thread `json:"threads"`
	taken   time.Time
	silent  string
}

// witness asks the worker.
func (t *taking) witness(ctx context.Context, s *subject) (found testimony) {
	switch {
	case s.Witness == nil:
		return found
	case s.state == stateStopped || s.state == stateTraced:
		found.silent = "is " + s.state + ", so nobody can tell how far it has come"
		return found
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout*4/10)
	defer cancel()
	found.taken = time.Now()
	body, err := s.Witness(ctx, s.PID)
	if err == nil {
		err = json.Unmarshal(body, &found)
	}
	switch {
	case ctx.Err() != nil:
		found.silent = "does not answer: something in it holds Python's lock"
	case err != nil:
		t.cfg.Logger.Debug("a worker does not tell what its flight recorder has", "pid", s.PID, "error", err)
	}
	return found
}

// flight has what the worker says of its flight recorders. If it does not answer, NCCL's is asked by the pipe that it
// listens to, for which it needs no lock of Python's.
func (t *taking) flight(ctx context.Context, s *subject, own testimony) (found []Flight, silent string) {
	for _, data := range own.Dumps {
		f := newFlight("the worker", "", data, nil)
		f.taken = own.taken
		found = append(found, f)
	}
	if len(found) > 0 || s.state == stateStopped || s.state == stateTraced {
		return found, own.silent
	}
	stem := s.getenv(envFlightPipe)
	if stem == "" {
		return nil, own.silent
	}
	f := t.pipeFlight(ctx, s, stem)
	switch {
	case f.Bytes > 0:
		return []Flight{f}, ""
	case strings.HasSuffix(stem, FlightName): // the agent has named a pipe that only NCCL makes
		return nil, own.silent
	}
	return []Flight{f}, own.silent
}

// pipeFlight asks NCCL's flight recorder by its pipe, whose path begins with stem.
func (t *taking) pipeFlight(ctx context.Context, s *subject, stem string) Flight {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout*6/10)
	defer cancel()
	// A little less, for it to say what it waited for.
	short, cancel := context.WithTimeout(ctx, t.cfg.Timeout/2)
	defer cancel()
	file := s.flightFile()
	f, ok := within(ctx, func() Flight {
		data, err := trigger(short, s.uid, resolve(s, stem+strconv.Itoa(s.Rank)+".pipe"), resolve(s, file))
		return newFlight("pipe", file, data, err)
	})
	if !ok {
		f = newFlight("pipe", file, nil, errors.New("no answer in time"))
	}
	return f
}

func newFlight(source, file string, data []byte, err error) Flight {
	f := Flight{Source: source, Worker: file, data: data, Bytes: len(data)}
	if err != nil {
		f.Problem = err.Error()
	}
	return f
}

// flightFile is where NCCL's flight recorder writes to, once its pipe is written to.
func (s *subject) flightFile() string {
	for _, name := range envFlightFile {
		if stem := s.getenv(name); stem != "" {
			return stem + strconv.Itoa(s.Rank)
		}
	}
	cache := cmp.Or(s.getenv("XDG_CACHE_HOME"), filepath.Join(s.getenv("HOME"), ".cache"))
	return filepath.Join(cache, "torch", "comm_lib_trace_rank_"+strconv.Itoa(s.Rank))
}

// trigger writes to the pipe and waits for the file to be written, by the user uid.
func trigger(ctx context.Context, uid int, pipe, file string) ([]byte, error) {
	before, _ := os.Stat(file)
	f, _, err := safeopen.OpenIf(pipe, os.O_WRONLY|syscall.O_NOFOLLOW, func(info os.FileInfo) error {
		switch {
		case info.Mode().Type() != os.ModeNamedPipe:
			return fmt.Errorf("%s is not a named pipe", pipe)
		case safeopen.Owner(info) != uid:
			return fmt.Errorf("%s is not a pipe of the worker's user, and is left alone", pipe)
		}
		return nil
	})
	switch {
	case errors.Is(err, syscall.ENXIO):
		return nil, fmt.Errorf("%s: the worker does not listen to it", pipe)
	case errors.Is(err, syscall.ENOENT):
		return nil, fmt.Errorf("%s does not exist; it is made by the NCCL backend, with TORCH_FR_BUFFER_SIZE above 0", pipe)
	case err != nil:
		return nil, err
	}
	defer f.Close()
	_ = f.SetWriteDeadline(time.Now().Add(lookEvery)) // a pipe without room has been written to
	if _, err := f.WriteString("1\n"); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("%s: %w", pipe, err)
	}
	return awaitFile(ctx, uid, file, before)
}

// awaitFile waits until a file differs from what it was, and then stays as it is.
func awaitFile(ctx context.Context, uid int, path string, before os.FileInfo) ([]byte, error) {
	tick := time.Tick(lookEvery)
	last, since := before, time.Now()
	for {
		info, err := os.Stat(path)
		if err == nil && info.Mode().IsRegular() {
			if !same(info, last) {
				last, since = info, time.Now()
			}
			if !same(info, before) && info.Size() > 0 && time.Since(since) >= settled {
				return ReadFlight(path, uid)
			}
		}
		select {
		case <-tick:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s did not change after the pipe was written to", path)
		}
	}
}

func same(a, b os.FileInfo) bool {
	return a != nil && b != nil && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && os.SameFile(a, b)
}

// ReadFlight reads the beginning of a flight recorder's file that belongs to the worker's user: the
// worker says which file, and must not have us copy one that it may not read.
func ReadFlight(path string, uid int) ([]byte, error) {
	f, info, err := safeopen.OpenIf(path, os.O_RDONLY|syscall.O_NOFOLLOW, func(info os.FileInfo) error {
		if !info.Mode().IsRegular() || safeopen.Owner(info) != uid {
			return fmt.Errorf("%s is not a file of the worker's user, and is not read", path)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFlight))
	if err == nil && info.Size() > maxFlight {
		err = fmt.Errorf("its first %d bytes of %d; the rest is in %s", maxFlight, info.Size(), path)
	}
	return data, err
}
