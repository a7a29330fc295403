package timer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// makeFIFO makes a FIFO where there is none.
func makeFIFO(path string) (fs.FileInfo, error) {
	if err := clearPath(path); err != nil {
		return nil, err
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("mkfifo: %w", err)
	}
	return os.Lstat(path)
}

// openFIFO opens a FIFO that was made, for reading and writing: so there is always a writer, and no end
// of file when the others close; and a reader, for clients that come early.
func openFIFO(path string, made fs.FileInfo) (*os.File, error) {
	// On macOS reads of what os.OpenFile returns would not wait.
	fd, err := retry(func() (int, error) {
		return unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	})
	if err != nil {
		_ = removeFIFO(path, made)
		return nil, fmt.Errorf("open: %w", err)
	}
	file := os.NewFile(uintptr(fd), path)
	info, err := file.Stat()
	if err != nil || !os.SameFile(info, made) {
		file.Close()
		return nil, errors.New("somebody else replaced it")
	}
	growPipe(fd)
	return file, nil
}

// clearPath removes what a server of before left at path. It keeps whatever
// somebody may want.
func clearPath(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch mode := info.Mode(); {
	case mode&fs.ModeNamedPipe != 0:
		// Opening for writing works only if somebody reads.
		if file, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0); err == nil {
			file.Close()
			return errors.New("another server reads it; end that, or choose another path")
		}
	case mode.IsRegular() && info.Size() == 0:
	case mode.IsRegular():
		return fmt.Errorf("a file of %d bytes is there; remove it, or choose another path", info.Size())
	default:
		return fmt.Errorf("something else is there (%s); remove it, or choose another path", mode)
	}
	return os.Remove(path)
}

// leadsTo reports whether path still leads to what was made there.
func leadsTo(path string, made fs.FileInfo) bool {
	info, err := os.Lstat(path)
	return err == nil && os.SameFile(info, made)
}

// removeFIFO removes a FIFO that was made from path, if that still leads to it.
func removeFIFO(path string, made fs.FileInfo) error {
	if !leadsTo(path, made) {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("timer FIFO: %w", err)
	}
	return nil
}
