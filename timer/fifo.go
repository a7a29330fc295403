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

// A fifo is open for reading and writing: so there is always a writer, and no end
// of file when the others close; and a reader, for clients that come early.
type fifo struct {
	file     *os.File
	conn     syscall.RawConn
	dev, ino uint64
}

// makeFIFO makes a FIFO where there is none, and opens it.
func makeFIFO(path string) (*fifo, error) {
	if err := clearPath(path); err != nil {
		return nil, err
	}
	if _, err := retry(func() (int, error) { return 0, unix.Mkfifo(path, 0o600) }); err != nil {
		return nil, fmt.Errorf("make it: %w", err)
	}
	f, err := openFIFO(path)
	if err != nil {
		os.Remove(path)
		return nil, err
	}
	return f, nil
}

func openFIFO(path string) (*fifo, error) {
	fd, err := retry(func() (int, error) {
		return unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("open it: %w", err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFIFO {
		unix.Close(fd)
		return nil, errors.New("somebody else replaced it")
	}
	growPipe(fd)
	file := os.NewFile(uintptr(fd), path)
	conn, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("open it: %w", err)
	}
	return &fifo{file: file, conn: conn, dev: uint64(stat.Dev), ino: stat.Ino}, nil
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
		fd, err := retry(func() (int, error) {
			return unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		})
		if err == nil {
			unix.Close(fd)
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

// at says whether path still leads to f.
func (f *fifo) at(path string) bool {
	var stat unix.Stat_t
	return unix.Lstat(path, &stat) == nil && uint64(stat.Dev) == f.dev && stat.Ino == f.ino
}

// read reads what is there, without waiting.
func (f *fifo) read(to []byte) (n int) {
	_ = f.conn.Control(func(fd uintptr) { n, _ = retry(func() (int, error) { return unix.Read(int(fd), to) }) })
	return n
}

// wake ends a waiting read of file, and all further ones.
func (f *fifo) wake() { _ = f.file.SetReadDeadline(time.Unix(1, 0)) }

// remove closes the FIFO and removes it from path, if that still leads to it.
func (f *fifo) remove(path string) error {
	defer f.file.Close()
	if !f.at(path) {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("timer FIFO: %w", err)
	}
	return nil
}
