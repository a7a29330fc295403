//go:build unix

package timer_test

import (
	"bufio"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/timer"
)

// fifo makes a FIFO and opens it for reading.
func fifo(t *testing.T) (path string, lines *bufio.Reader) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return path, bufio.NewReader(file)
}

func TestFileClientLines(t *testing.T) {
	path, lines := fifo(t)
	pid := strconv.Itoa(os.Getpid())
	at := time.Unix(1700000123, 456789000)
	tests := []struct {
		name   string
		signal syscall.Signal
		do     func(c timer.Client) error
		want   string
	}{
		{"acquire", 0, func(c timer.Client) error { return c.Acquire("a b", at) },
			`{"version": 1, "pid": ` + pid + `, "scope_id": "a b", "expiration_time": 1700000123.456789, "signal": 9}`},
		{"with a signal", 15, func(c timer.Client) error { return c.Acquire("é\"\n", at) },
			`{"version": 1, "pid": ` + pid + `, "scope_id": "\u00e9\"\n", "expiration_time": 1700000123.456789, "signal": 15}`},
		{"report only", -1, func(c timer.Client) error { return c.Acquire("", at) },
			`{"version": 1, "pid": ` + pid + `, "scope_id": "", "expiration_time": 1700000123.456789, "signal": -1}`},
		{"before 1970 is not a release", 0, func(c timer.Client) error { return c.Acquire("a", time.Unix(-5, 0)) },
			`{"version": 1, "pid": ` + pid + `, "scope_id": "a", "expiration_time": 0.0, "signal": 9}`},
		{"release", 0, func(c timer.Client) error { return c.Release("a") },
			`{"version": 1, "pid": ` + pid + `, "scope_id": "a", "expiration_time": -1, "signal": 0}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.do(&timer.FileClient{Path: path, Signal: tt.signal}); err != nil {
				t.Fatal(err)
			}
			got, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want+"\n", got); diff != "" {
				t.Error("(-want +got)\n" + diff)
			}
		})
	}
	if err := (&timer.FileClient{Path: path}).Acquire("a", time.Time{}); !errors.Is(err, timer.ErrInvalid) {
		t.Errorf("no expiration: %v, want ErrInvalid", err)
	}
}

func TestFileClientTooLong(t *testing.T) {
	path, lines := fifo(t)
	client := &timer.FileClient{Path: path}
	at := time.Unix(1700000000, 5e8)
	around := len(timer.Request{PID: os.Getpid(), ExpirationTime: timer.FromSeconds(1700000000.5), Signal: 9}.String())
	if err := client.Acquire(strings.Repeat("x", timer.PipeBuf-around), at); !errors.Is(err, timer.ErrInvalid) || !strings.Contains(err.Error(), "4096") {
		t.Errorf("4096 bytes of JSON: %v, want ErrInvalid", err)
	}
	if err := client.Acquire(strings.Repeat("x", timer.PipeBuf-around-1), at); err != nil {
		t.Errorf("4095 bytes of JSON: %v", err)
	}
	if line, err := lines.ReadString('\n'); len(line) != timer.PipeBuf || err != nil {
		t.Errorf("got %d bytes, %v", len(line), err)
	}
}

func TestFileClientUnavailable(t *testing.T) {
	dir := t.TempDir()
	unread := filepath.Join(dir, "unread")
	if err := syscall.Mkfifo(unread, 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, path, cause string
		retried           bool
	}{
		{"no file", filepath.Join(dir, "none"), "no such file", true},
		{"no reader", unread, "no such device or address", true},
		{"not a FIFO", file, "not a FIFO", false},
		{"a directory", dir, "is a directory", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			// The shortest of some times: where it gives up at once, not each of
			// them is long on a busy machine.
			var err error
			took := time.Duration(math.MaxInt64)
			for range 5 {
				begin := time.Now()
				err = (&timer.FileClient{Path: tt.path}).Release("s")
				if took = min(took, time.Since(begin)); tt.retried {
					break
				}
			}
			if err == nil || !strings.Contains(err.Error(), tt.cause) {
				t.Errorf("error %v, want %s", err, tt.cause)
			}
			if tt.name != "a directory" && !errors.Is(err, syscall.EPIPE) {
				t.Errorf("error %v is not EPIPE", err)
			}
			if tt.retried != (took >= 900*time.Millisecond) {
				t.Errorf("it took %v", took)
			}
		})
	}
	t.Cleanup(func() {
		if text, err := os.ReadFile(file); string(text) != "precious" {
			t.Errorf("the file has %q, %v", text, err)
		}
	})
}

// A server that comes a little later is found.
func TestFileClientWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	sent := make(chan error, 1)
	go func() { sent <- (&timer.FileClient{Path: path}).Acquire("s", time.Now().Add(time.Hour)) }()
	f, err := timer.StartFIFO(timer.Config{}, path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

func TestFileClientFull(t *testing.T) {
	path, lines := fifo(t)
	fill, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer fill.Close()
	filled := 0
	for block := make([]byte, 4096); ; {
		n, err := syscall.Write(int(fill.Fd()), block)
		if err == syscall.EAGAIN {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		filled += n
	}
	client := &timer.FileClient{Path: path}
	if err := client.Acquire("s", time.Now()); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("error %v, want EAGAIN", err)
	}
	// It waits for room.
	sent := make(chan error, 1)
	go func() { sent <- client.Acquire("late", time.Now()) }()
	if _, err := lines.Discard(filled); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if line, err := lines.ReadString('\n'); !strings.Contains(line, "late") {
		t.Errorf("got %q, %v", line, err)
	}
}
