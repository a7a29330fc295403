package harmless

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// Open opens a regular file for reading. It follows no link and waits for nobody, as
// the open of a FIFO does. Errors do not name the file.
func Open(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, syscall.ELOOP) {
			err = errors.New("is a symbolic link; left alone")
		}
		return nil, nil, bare(err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("is no regular file; left alone")
	}
	if err != nil {
		f.Close()
		return nil, nil, bare(err)
	}
	return f, info, nil
}

// bare drops the operation and path that os puts before an error.
func bare(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}
