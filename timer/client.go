package timer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pipeBuf is the most bytes that a client may send at once, newline included: the
// kernel does not mix so many with others'. PyTorch's client allows one more.
const pipeBuf = 4096

// The number of times that a client tries to open the FIFO, and the time between.
// Source: _open_non_blocking in file_based_local_timer.py.
const (
	openTries = 10
	openPause = 100 * time.Millisecond
)

// fullTime is how long a client waits for room in a FIFO.
const fullTime = time.Second

var (
	errUnavailable = &wordedError{"timer server is not available", syscall.EPIPE}
	errTooLong     = &wordedError{"timer request too long", ErrInvalid}
)

// A FileClient sends requests of this process to a FileServer, ours or PyTorch's.
// It keeps nothing open.
// Source: FileTimerClient in file_based_local_timer.py.
type FileClient struct {
	// Path of the FIFO: what TORCHELASTIC_TIMER_FILE says.
	Path string
	// Signal is what this process gets at the deadline. Default SIGKILL; a negative
	// one leaves the process alive, and the expiry is reported.
	Signal syscall.Signal
}

var _ Client = (*FileClient)(nil)

// Acquire starts or moves a timer. When nobody reads the FIFO, or there is none, for about
// a second, the error wraps syscall.EPIPE, as what PyTorch raises; when it has been full
// for a second, because its reader is stuck, syscall.EAGAIN. A request of more than 4096
// bytes, newline included, is ErrInvalid. An expiration before 1970 is taken as 1970: it has passed.
func (c *FileClient) Acquire(scopeID string, expiration time.Time) error {
	r, err := acquisition(0, scopeID, expiration, c.Signal)
	if err == nil {
		err = c.Send(r)
	}
	if err != nil {
		return fmt.Errorf("acquire timer %.64q: %w", scopeID, err)
	}
	return nil
}

// Release ends a timer, with the same errors.
func (c *FileClient) Release(scopeID string) error {
	if err := c.Send(Request{PID: os.Getpid(), ScopeID: scopeID}); err != nil {
		return fmt.Errorf("release timer %.64q: %w", scopeID, err)
	}
	return nil
}

// Send sends any request, for other processes too.
// Source: _send_request in file_based_local_timer.py.
func (c *FileClient) Send(r Request) error {
	line := append(r.AppendJSON(make([]byte, 0, 256)), '\n')
	if len(line) > pipeBuf {
		return fmt.Errorf("%w: %d bytes of JSON: want at most %d; choose a shorter scope", errTooLong, len(line)-1, pipeBuf-1)
	}
	var err error
	for try := range openTries {
		if try > 0 {
			time.Sleep(openPause)
		}
		err = c.try(line)
		if !(errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPIPE)) ||
			errors.Is(err, errUnavailable) {
			return err
		}
	}
	return fmt.Errorf("%w: %v", errUnavailable, err)
}

// try sends a line in one write: the kernel takes all of it or nothing.
func (c *FileClient) try(line []byte) error {
	file, err := os.OpenFile(c.Path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || info.Mode().Type() != fs.ModeNamedPipe {
		return fmt.Errorf("%w: %s is not a FIFO", errUnavailable, c.Path)
	}
	_ = file.SetWriteDeadline(time.Now().Add(fullTime)) // on macOS there are none: it does not wait
	if _, err = file.Write(line); errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("timer FIFO is full: %s: %w", c.Path, unix.EAGAIN)
	}
	return err
}

// retry repeats a call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}
