package kmsg

import "golang.org/x/sys/unix"

// Read calls each for every record that the kernel has kept, the oldest first, or for none where
// they cannot be read. It waits for nobody.
func Read(each func(record string)) {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	buf := make([]byte, 8192)
	for range 100_000 {
		n, err := unix.Read(fd, buf)
		if err == unix.EPIPE || err == unix.EINTR {
			continue // the oldest messages were overwritten meanwhile
		}
		if err != nil || n <= 0 {
			break
		}
		each(string(buf[:n]))
	}
}

// Now returns the microseconds since boot, as the records count them.
func Now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return ts.Nano() / 1000
}
