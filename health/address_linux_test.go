package health_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/health"
)

// A socket has its mode before others can see it.
func TestUnixSocketMode(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_ATTRIB); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "health")
	listen(t, running(), func(c *health.Config) { c.Addr = "unix:" + path })
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v, want mode 0600", info, err)
	}
	if n, err := unix.Read(fd, make([]byte, 4096)); err != unix.EAGAIN {
		t.Errorf("its mode was changed after bind: %d bytes of events, %v", n, err)
	}
}
