package policy

import (
	"bytes"
	"strings"
)

// Bounds of what a rule sees of a worker's stderr.
const (
	tailLines = 50
	tailBytes = 8 << 10
)

// Tail returns the last lines of a worker's stderr as a rule sees them: at most
// 50, at most 8 KiB in all, valid UTF-8, without the newline at the end.
func Tail(stderr []byte) string {
	stderr = bytes.TrimRight(stderr, "\r\n \t")
	if cut := len(stderr) - tailBytes; cut > 0 {
		stderr = stderr[cut:]
		stderr = stderr[bytes.IndexByte(stderr, '\n')+1:] // without a line that is not whole
	}
	lines := bytes.Split(stderr, []byte("\n"))
	lines = lines[max(0, len(lines)-tailLines):]
	return strings.ToValidUTF8(string(bytes.Join(lines, []byte("\n"))), "\uFFFD")
}
