package safeopen

import (
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// OpenIf opens a file that another user may have chosen, if look returns no error for
// it. What look refuses is not opened: that alone does something to some devices, and
// to who reads a FIFO. What look has seen is what is opened, whatever has its name by
// now. OpenIf waits for nobody. The flags are os.O_RDONLY or os.O_WRONLY, with
// syscall.O_NOFOLLOW to fail with ELOOP for a link.
func OpenIf(path string, flags int, look func(fs.FileInfo) error) (*os.File, fs.FileInfo, error) {
	at, err := os.OpenFile(path, unix.O_PATH|flags&syscall.O_NOFOLLOW, 0) // finds the file, and does not open it
	if err != nil {
		return nil, nil, err
	}
	defer at.Close()
	info, err := at.Stat()
	switch {
	case err != nil:
	case info.Mode()&fs.ModeSymlink != 0:
		err = &fs.PathError{Op: "open", Path: path, Err: syscall.ELOOP}
	default:
		err = look(info)
	}
	if err != nil {
		return nil, nil, err
	}
	found := "/proc/self/fd/" + strconv.Itoa(int(at.Fd()))
	if _, err := os.Lstat(found); err != nil { // there is no /proc
		return openThenLook(path, flags, look)
	}
	fd := -1
	for err = syscall.EINTR; err == syscall.EINTR; {
		fd, err = syscall.Open(found, flags&^syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), info, nil
}
