package logs

import (
	"errors"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// punch gives back the room of a part of a file, which is zero then.
func punch(f *os.File, from, size int64) error {
	return control(f, func(fd int) error {
		for {
			err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, size)
			if err != unix.EINTR {
				return os.NewSyscallError("fallocate", err)
			}
		}
	})
}

// nextData returns where, from an offset on, the file holds something, as far as
// its file system knows.
func nextData(f *os.File, from int64) (to int64, err error) {
	err = control(f, func(fd int) error {
		// It moves the descriptor's offset, which nobody uses.
		if to, err = unix.Seek(fd, from, unix.SEEK_DATA); errors.Is(err, unix.ENXIO) {
			to, err = unix.Seek(fd, 0, unix.SEEK_END)
		}
		return err
	})
	return max(to, from), err
}

// lowerPriority gives the goroutine a tenth of a CPU where workers want all of
// them. Its thread ends with it.
func lowerPriority() {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 10)
}
