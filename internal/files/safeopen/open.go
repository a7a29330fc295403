// Package safeopen opens and makes files in places where other users may have put
// something: a FIFO, a device, a link to somebody's file. It also tells who may change
// a path.
package safeopen

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// Open opens a regular file for reading. It follows no link and waits for nobody, as
// the open of a FIFO does. Errors do not name the file.
func Open(path string) (*os.File, fs.FileInfo, error) {
	f, info, err := OpenIf(path, os.O_RDONLY|syscall.O_NOFOLLOW, func(info fs.FileInfo) error {
		if !info.Mode().IsRegular() {
			return errors.New("is not a regular file; left alone")
		}
		return nil
	})
	if errors.Is(err, syscall.ELOOP) {
		err = errors.New("is a symbolic link; left alone")
	}
	return f, info, Bare(err)
}

// openThenLook is OpenIf where a file cannot be looked at before it is opened.
func openThenLook(path string, flags int, look func(fs.FileInfo) error) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, flags|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = look(info)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// OpenIn is Open for a file below a directory that is open: which directory has its name
// by now counts for nothing, and no link leads out of it.
func OpenIn(root *os.Root, path string) (*os.File, fs.FileInfo, error) {
	entry, err := root.Lstat(path)
	switch {
	case err != nil:
	case entry.Mode()&fs.ModeSymlink != 0:
		err = errors.New("is a symbolic link; left alone")
	case !entry.Mode().IsRegular():
		err = errors.New("is not a regular file; left alone")
	}
	if err != nil {
		return nil, nil, Bare(err)
	}
	f, err := root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, Bare(err)
	}
	info, err := f.Stat()
	if err == nil && !os.SameFile(entry, info) {
		err = errors.New("was replaced just now; left alone")
	}
	if err != nil {
		f.Close()
		return nil, nil, Bare(err)
	}
	return f, info, nil
}

// Create makes a new file for writing. What has its name already is removed, unless it is
// a directory: a link is not followed, and a file that others have does not get what is
// written.
func Create(path string) (*os.File, error) {
	if err := syscall.Unlink(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, &fs.PathError{Op: "unlink", Path: path, Err: err}
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
}

// ReadAtMost returns the first bytes of a regular file, or of a pipe that this process has inherited, such
// as that of a shell's <(COMMAND). Other pipes are refused, since their writer may never come.
func ReadAtMost(path string, most int64) ([]byte, error) {
	inherited := strings.HasPrefix(path, "/dev/fd/") || strings.HasPrefix(path, "/proc/self/fd/") || path == "/dev/stdin"
	f, _, err := OpenIf(path, os.O_RDONLY, func(info fs.FileInfo) error {
		if !info.Mode().IsRegular() && !(inherited && info.Mode().Type() == fs.ModeNamedPipe) {
			return &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}

// Bare drops the operation and path that os puts before an error.
func Bare(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}
