package timer

import (
	"errors"
	"math"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// newAlarm prefers the kernel's timer: that one follows the wall clock, and is
// exact to some 50 µs where the runtime's sleep counts in milliseconds.
func newAlarm(cfg Config) alarm {
	fd, err := -1, error(unix.ENOSYS)
	if !cfg.plain {
		fd, err = unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	}
	if err == nil {
		file := os.NewFile(uintptr(fd), "timerfd")
		if conn, err := file.SyscallConn(); err == nil && file.SetReadDeadline(time.Time{}) == nil { // it is pollable
			return &kernelAlarm{file, conn}
		}
		file.Close()
	}
	return newGoAlarm(cfg.now, cfg.MaxInterval)
}

// A kernelAlarm is a timerfd, read through the runtime's poller.
type kernelAlarm struct {
	file *os.File
	conn syscall.RawConn
}

// maxKernelTime is what the kernel's 64-bit nanoseconds can hold, in the year 2262.
const maxKernelTime = math.MaxInt64 / 1_000_000_000

func (a *kernelAlarm) set(at float64) {
	whole, part := math.Modf(min(max(at, 0), maxKernelTime))
	// A time that has passed is fine, but zero would mean off.
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(int64(whole)*1e9+int64(math.Ceil(part*1e9)), 1))}
	_ = a.conn.Control(func(fd uintptr) {
		_ = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET, &spec, nil)
	})
}

func (a *kernelAlarm) wait() bool {
	var count [8]byte
	_, err := a.file.Read(count[:])
	return err == nil || errors.Is(err, unix.ECANCELED) // the latter: the wall clock was set
}

func (a *kernelAlarm) close() { a.file.Close() }
