package timer

import (
	"context"
	"math"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// newAlarm prefers the kernel's timer: that one follows the wall clock, and is
// exact to some 50 µs where the runtime's sleep counts in milliseconds.
func newAlarm(cfg Config) alarm {
	if !cfg.plain {
		if a := newKernelAlarm(); a != nil {
			return a
		}
	}
	return newClockAlarm(cfg.now, cfg.MaxInterval)
}

// A kernelAlarm is a timerfd, read through the runtime's poller.
type kernelAlarm struct {
	file *os.File
	conn syscall.RawConn
}

func newKernelAlarm() alarm {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil
	}
	file := os.NewFile(uintptr(fd), "timerfd")
	conn, err := file.SyscallConn()
	if err != nil || file.SetReadDeadline(time.Time{}) != nil { // it is not pollable
		file.Close()
		return nil
	}
	return &kernelAlarm{file, conn}
}

func (a *kernelAlarm) set(at float64) {
	var spec unix.ItimerSpec // all zero: it is off
	if !math.IsInf(at, 1) {
		whole, part := math.Modf(max(at, 0))
		// A time that has passed is fine, but zero would mean off.
		spec.Value = unix.NsecToTimespec(max(int64(whole)*1e9+int64(math.Ceil(part*1e9)), 1))
		if whole > maxKernelTime {
			spec.Value = unix.Timespec{Sec: maxKernelTime}
		}
	}
	_ = a.conn.Control(func(fd uintptr) {
		_ = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET, &spec, nil)
	})
}

// maxKernelTime is what the kernel's 64-bit nanoseconds can hold, in the year 2262.
const maxKernelTime = math.MaxInt64 / 1_000_000_000

func (a *kernelAlarm) run(ctx context.Context, ring func()) {
	stop := context.AfterFunc(ctx, func() { _ = a.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var count [8]byte
	for ctx.Err() == nil {
		err := a.conn.Read(func(fd uintptr) bool {
			// ECANCELED: the wall clock was set. That is a ring as well.
			_, err := unix.Read(int(fd), count[:])
			return err != unix.EAGAIN && err != unix.EINTR
		})
		if err != nil {
			return
		}
		ring()
	}
}

func (a *kernelAlarm) close() { a.file.Close() }
