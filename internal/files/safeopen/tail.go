package safeopen

import (
	"bytes"
	"io"
	"io/fs"
)

// Tail returns the last n lines of a file that Open opens, or of its last limit bytes.
func Tail(path string, n, limit int) ([]byte, error) {
	f, info, err := Open(path)
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
