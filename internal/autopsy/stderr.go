package autopsy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/safeopen"
)

// How much of stderr is kept.
const (
	maxStderr      = 16 << 10
	maxStderrLines = 50
)

// lastWords reads the end of stderr as it is now, before a signal makes the worker
// write more. The function that it returns waits for that.
func (s *subject) lastWords(ctx context.Context) func() string {
	// Whatever else is done waits for it, but not for long.
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	done := make(chan string, 1)
	go func() {
		fallback := "/proc/" + strconv.Itoa(s.PID) + "/fd/2"
		switch {
		case s.Tail != nil:
			done <- lastLines(s.Tail())
		case s.Stderr != "":
			done <- lastLines(readEnd(s.Stderr, s.uid))
		case isRegular(fallback):
			done <- lastLines(readEnd(fallback, s.uid))
		default:
			done <- ""
		}
	}()
	select {
	case text := <-done:
		return func() string { return text }
	case <-short.Done():
	}
	return func() string {
		select {
		case text := <-done:
			return text
		case <-ctx.Done():
			return "(it could not be read in time)"
		}
	}
}

// readEnd reads the end of the stderr of a process of the user uid.
func readEnd(path string, uid int) []byte {
	f, info, err := openOutput(path, uid)
	if err != nil {
		return []byte("(" + err.Error() + ")")
	}
	defer f.Close()
	text, _ := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-maxStderr), maxStderr))
	return text
}

// openOutput opens what a process of the user uid writes its stderr to, links followed.
// What is not a regular file is not even opened: that may do something to a terminal or
// a pipe.
func openOutput(path string, uid int) (*os.File, os.FileInfo, error) {
	return safeopen.OpenIf(path, os.O_RDONLY, func(info os.FileInfo) error {
		switch {
		case !info.Mode().IsRegular():
			return errors.New(path + " is not a regular file")
		case !mayRead(path, info, uid):
			return errors.New(path + " is another user's file")
		}
		return nil
	})
}

// mayRead says whether what the descriptor of a user's process leads to may be shown:
// that process may have opened a file, as O_PATH, that it could not read itself.
func mayRead(path string, info os.FileInfo, uid int) bool {
	return !strings.HasPrefix(path, "/proc/") || uid == os.Geteuid() || safeopen.Owner(info) == uid
}

// isRegular says whether a path, links followed, is a regular file. By the time that it
// is opened it may be another.
func isRegular(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// lastLines cuts a text down to its last lines.
func lastLines(text []byte) string {
	text = bytes.TrimRight(text, "\n")
	whole := len(text) <= maxStderr
	text = text[max(0, len(text)-maxStderr):]
	lines := bytes.SplitAfter(text, []byte("\n"))
	switch {
	case len(lines) > maxStderrLines:
		lines = lines[len(lines)-maxStderrLines:]
	case !whole && len(lines) > 1:
		lines = lines[1:] // the first is cut
	}
	return strings.ToValidUTF8(string(bytes.Join(lines, nil)), "�")
}
