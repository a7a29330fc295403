package health

import (
	"bytes"
	"io"
	"io/fs"
	"strings"

	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/format/text"
)

const (
	maxLogLines = 1000
	maxLogBytes = 256 << 10 // of what /v1/logs returns
	maxLine     = 400       // characters of a line in a State
)

// endOf returns the last n lines of a log file as a person would see them, at
// most 64 KiB of the file and 400 characters of each: without escape sequences and
// other control characters, and of a line that was written over, as progress bars
// do, the last version. Text that is not UTF-8 is shown as U+FFFD.
func endOf(path string, n int) ([]string, error) {
	end, err := tail(path, n, 64<<10)
	if err != nil || len(end) == 0 {
		return nil, err
	}
	lines := strings.Split(strings.TrimSuffix(string(end), "\n"), "\n")
	for i, line := range lines {
		lines[i] = text.Line(line, maxLine)
	}
	return lines, nil
}

// tail returns the last n lines of a file, or of its last limit bytes. It follows
// no symbolic link and reads regular files only: what it shows should be a log.
func tail(path string, n, limit int) ([]byte, error) {
	f, info, err := safeopen.Open(path)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer f.Close()
	from := max(0, info.Size()-int64(limit))
	buf, err := io.ReadAll(io.NewSectionReader(f, from, info.Size()-from))
	if i := bytes.IndexByte(buf, '\n'); from > 0 && i >= 0 { // the first line lacks its beginning
		buf = buf[i+1:]
	}
	return lastLines(buf, n), err
}

// lastLines returns the last n lines of text; the last of them may lack its end.
func lastLines(text []byte, n int) []byte {
	if n <= 0 {
		return nil
	}
	i := len(bytes.TrimSuffix(text, []byte("\n")))
	for ; n > 0 && i >= 0; n-- {
		i = bytes.LastIndexByte(text[:i], '\n')
	}
	return text[i+1:]
}
