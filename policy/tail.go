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
	cut := len(stderr) > tailBytes
	if cut {
		stderr = stderr[len(stderr)-tailBytes:]
	}
	start := len(stderr)
	for range tailLines {
		i := bytes.LastIndexByte(stderr[:start], '\n')
		if start = max(i, 0); i < 0 {
			break
		}
	}
	if start > 0 {
		start++ // after the newline
	} else if i := bytes.IndexByte(stderr, '\n'); cut && i >= 0 {
		start = i + 1 // a line that is not whole
	}
	return strings.ToValidUTF8(string(stderr[start:]), "\uFFFD")
}
