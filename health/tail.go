package health

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"
)

const (
	maxLogLines = 1000
	maxLogBytes = 256 << 10 // of what /v1/logs returns
	maxLine     = 400       // characters of a line in a State
)

// LastLines returns the last n lines of a log file as a person would see them, at
// most 64 KiB of the file and 400 characters of each: without escape sequences and
// other control characters, and of a line that was written over, as progress bars
// do, the last version. Text that is not UTF-8 is shown as U+FFFD.
func LastLines(path string, n int) ([]string, error) {
	text, err := tail(path, n, 64<<10)
	if err != nil || len(text) == 0 {
		return nil, err
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for i, line := range lines {
		lines[i] = clean(line)
	}
	return lines, nil
}

// tail returns the last n lines of a file, or of its last limit bytes. It follows
// no symbolic link and reads regular files only: what it shows should be a log.
func tail(path string, n, limit int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	from := max(0, info.Size()-int64(limit))
	buf := make([]byte, info.Size()-from)
	read, err := f.ReadAt(buf, from)
	if err != nil && !errors.Is(err, io.EOF) { // EOF: it has become shorter
		return nil, err
	}
	buf = buf[:read]
	if from > 0 { // the first line lacks its beginning
		if i := bytes.IndexByte(buf, '\n'); i >= 0 {
			buf = buf[i+1:]
		}
	}
	return lastLines(buf, n), nil
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

// clean makes a line of output readable and harmless.
func clean(line string) string {
	line = strings.TrimRight(line, "\r")
	if i := strings.LastIndexByte(line, '\r'); i >= 0 {
		line = line[i+1:]
	}
	var b strings.Builder
	count := 0
	for i := 0; i < len(line); {
		if line[i] == 0x1b {
			i += escape(line[i:])
			continue
		}
		r, size := utf8.DecodeRuneInString(line[i:])
		i += size
		switch {
		case r == '\t':
			r = ' '
		case !unicode.IsGraphic(r), unicode.Is(unicode.Bidi_Control, r):
			continue
		}
		if count++; count > maxLine {
			b.WriteRune('…')
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

// escape returns how long the escape sequence at the beginning of s is.
// Source: ECMA-48, 5.4 and 8.3.
func escape(s string) int {
	if len(s) < 2 {
		return len(s)
	}
	switch s[1] {
	case '[': // parameters, then one byte from @ on
		for i := 2; i < len(s); i++ {
			if s[i] >= 0x40 && s[i] <= 0x7e {
				return i + 1
			}
			if s[i] < 0x20 || s[i] > 0x7e { // broken off
				return i
			}
		}
		return len(s)
	case ']', 'P', 'X', '^', '_': // a string that BEL or ESC \ ends
		for i := 2; i < len(s); i++ {
			if s[i] == 0x07 {
				return i + 1
			}
			if s[i] == 0x1b {
				return i + min(2, len(s)-i)
			}
		}
		return len(s)
	}
	i := 1
	for i < len(s) && s[i] >= 0x20 && s[i] <= 0x2f { // intermediate bytes
		i++
	}
	if i < len(s) && s[i] >= 0x30 && s[i] <= 0x7e {
		i++
	}
	return i
}
