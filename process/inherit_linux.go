package process

import (
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// sealDescriptors makes every descriptor above 2 end at an exec. Those that the
// program opened itself do so anyway; a pipe or a lock that it inherited would
// otherwise stay open as long as any worker lives.
// Source: subprocess.Popen's close_fds, on which torchrun relies.
func sealDescriptors() {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	open, err := os.ReadDir("/proc/self/fd") // before Linux 5.11
	if err != nil {
		return
	}
	for _, entry := range open {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}
