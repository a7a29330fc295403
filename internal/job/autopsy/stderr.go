package autopsy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/muster-run/muster/internal/files/safeopen"
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

// readEnd reads the end of what a process of the user uid writes its stderr to, links
// followed. What is not a regular file is not even opened: that may do something to a
// terminal or a pipe.
func readEnd(path string, uid int) []byte {
	f, info, err := safeopen.OpenIf(path, os.O_RDONLY, func(info os.FileInfo) error {
		switch {
		case !info.Mode().IsRegular():
			return errors.New(path + " is not a regular file")
		case strings.HasPrefix(path, "/proc/") && uid != os.Geteuid() && safeopen.Owner(info) != uid:
			// The process may have opened it, as O_PATH, and could not read it itself.
			return errors.New(path + " is another user's file")
		}
		return nil
	})
	if err != nil {
		return []byte("(" + err.Error() + ")")
	}
	defer f.Close()
	text, _ := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-maxStderr), maxStderr))
	return text
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
