package tempdir

import (
	"os"

	"golang.org/x/sys/unix"
)

// InMemory returns a file that is in no directory, to be read from its beginning; /proc shows its name. A process that
// inherits it can read all of it, however late; a pipe has room for 64 KiB until somebody reads it.
func InMemory(name string, text []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err = f.WriteAt(text, 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
