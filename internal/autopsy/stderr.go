package autopsy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/muster-run/muster/internal/safeopen"
)

// How much of stderr is kept.
const (
	maxStderr      = 16 << 10
	maxStderrLines = 50
)

// lastWords reads the end of what the process wrote to stderr.
func (s *subject) lastWords(ctx context.Context) string {
	text, ok := within(ctx, func() string {
		if s.Tail != nil {
			return lastLines(s.Tail())
		}
		opened := "/proc/" + strconv.Itoa(s.PID) + "/fd/2"
		if info, err := os.Stat(opened); err != nil || !info.Mode().IsRegular() {
			return ""
		}
		return lastLines(readEnd(opened, s.uid))
	})
	if !ok {
		return "(it could not be read in time)"
	}
	return text
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

// mayRead reports whether what the descriptor of a user's process leads to may be shown:
// that process may have opened a file, as O_PATH, that it could not read itself.
func mayRead(path string, info os.FileInfo, uid int) bool {
	return !strings.HasPrefix(path, "/proc/") || uid == os.Geteuid() || safeopen.Owner(info) == uid
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
