package warm_test

import (
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/muster-run/muster/process/warm"
)

// What is not a server is refused.
func TestNewServer(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	for name, says := range map[string]string{"nothing": "", "nonsense": "\x03\x00\x00\x00abc", "too much": "\xff\xff\xff\xff", "init": "\x08\x00\x00\x00server\x001", "a stranger": "\x0d\x00\x00\x00server\x00999999"} {
		fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := syscall.Write(fds[1], []byte(says)); err != nil {
			t.Fatal(err)
		}
		syscall.Close(fds[1])
		if _, err := warm.NewServer(t.Context(), fds[0], quiet); err == nil || !strings.Contains(err.Error(), "the server of start_method: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := warm.NewServer(t.Context(), fd, quiet); err == nil {
		t.Error("a file counts as a server")
	}
	if _, err := warm.NewServer(t.Context(), -1, quiet); err == nil {
		t.Error("no file counts as a server")
	}
}
