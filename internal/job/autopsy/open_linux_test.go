package autopsy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/job/autopsy"
)

// A process chooses the paths of its flight recorder's pipe, and of the file that this writes.
// What is not its user's, or is of another kind, is not even opened: who reads a FIFO would notice.
func TestLeftAlone(t *testing.T) {
	dir := t.TempDir()
	fifo, file := filepath.Join(dir, "fifo"), filepath.Join(dir, "file")
	must(t, unix.Mkfifo(fifo, 0o600), os.WriteFile(file, []byte("text"), 0o600))
	reader, err := unix.Open(fifo, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(reader)
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	defer unix.Close(watch)
	for _, path := range []string{fifo, file} {
		_, err := unix.InotifyAddWatch(watch, path, unix.IN_OPEN)
		must(t, err)
	}
	me := os.Getuid()
	trigger := func(uid int, pipe string) string {
		_, err := autopsy.Trigger(t.Context(), uid, pipe, file)
		if err == nil {
			return ""
		}
		return err.Error()
	}
	for _, tt := range []struct {
		name, want string
		look       func() string
	}{
		{"pipe of another user", "is not a pipe of the worker's user", func() string { return trigger(me+1, fifo) }},
		{"file in the pipe's place", "is not a named pipe", func() string { return trigger(me, file) }},
		{"flight recorder's file of another user", "is not a file of the worker's user", func() string {
			_, err := autopsy.ReadFlight(file, me+1)
			return err.Error()
		}},
		{"FIFO in that file's place", "is not a file of the worker's user", func() string {
			_, err := autopsy.ReadFlight(fifo, me)
			return err.Error()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.look(); !strings.Contains(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
			if n, err := unix.Read(watch, make([]byte, 4096)); n > 0 || err != unix.EAGAIN {
				t.Errorf("it was opened: %v", err)
			}
			ends := []unix.PollFd{{Fd: int32(reader), Events: unix.POLLIN}}
			if n, err := unix.Poll(ends, 0); n != 0 || err != nil {
				t.Errorf("the pipe's reader sees events %#x, %v", ends[0].Revents, err)
			}
		})
	}
}
