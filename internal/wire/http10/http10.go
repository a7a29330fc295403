// Package http10 asks servers on this host or in this job by HTTP/1.0, whose servers close the
// connection after their answer, which comes in one piece. It does without net/http: that would
// bring its client into a binary whose start is to be fast.
package http10

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/format/text"
)

// A HeadError says that an answer does not begin as HTTP's do: it may be the wrong server.
type HeadError struct{ text string }

func (e *HeadError) Error() string { return e.text }

// A StatusError is an answer with another status than 200.
type StatusError struct {
	Status string
	Said   string // the answer's first 200 characters, without control characters
}

func (e *StatusError) Error() string { return "it answers " + e.Status + ": " + e.Said }

// Ask sends a request without a body, and returns the body of the answer, of at most limit
// bytes. It gives up when ctx is done. The caller closes conn.
func Ask(ctx context.Context, conn net.Conn, method, path string, limit int64) ([]byte, error) {
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	// By whatever name we got there: servers check names because of browsers.
	if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", method,
		path); err != nil {
		return nil, err
	}
	return Read(conn, limit)
}

// Stream sends a request without a body, and returns the body of the answer for the caller to
// read as it comes, for as long as ctx lasts; stop ends that sooner, and is to be called. The
// caller closes conn.
func Stream(ctx context.Context, conn net.Conn, path string) (body *bufio.Reader, stop func() bool, err error) {
	stop = context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	if _, err = fmt.Fprintf(conn, "GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n", path); err != nil {
		return nil, stop, err
	}
	body = bufio.NewReaderSize(conn, 4<<10)
	status, length, err := head(body, maxRefusal)
	if err != nil || status == "200" {
		return body, stop, err
	}
	_, err = read(body, status, length, maxRefusal)
	return nil, stop, err
}

// maxRefusal bounds an answer that is not a stream.
const maxRefusal = 64 << 10

// Read reads an answer, and returns its body.
func Read(r io.Reader, limit int64) ([]byte, error) {
	in := bufio.NewReaderSize(r, 8<<10)
	status, length, err := head(in, limit)
	if err != nil {
		return nil, err
	}
	return read(in, status, length, limit)
}

// head reads what comes before the body: the status, and the length, -1 without one.
func head(in *bufio.Reader, limit int64) (status string, length int64, err error) {
	line, err := headLine(in)
	if err != nil {
		return "", 0, err
	}
	proto, rest, _ := strings.Cut(line, " ")
	status, _, _ = strings.Cut(rest, " ")
	if !strings.HasPrefix(proto, "HTTP/1.") || len(status) != 3 {
		return "", 0, &HeadError{"what answers does not speak HTTP"}
	}
	length = -1
	for {
		if line, err = headLine(in); err != nil || line == "" {
			return status, length, err
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.ToLower(name) {
		case "content-length":
			if length, err = strconv.ParseInt(value, 10, 64); err != nil || length < 0 || length > limit {
				return "", 0, fmt.Errorf("the answer has a length of '%s' bytes; the limit is %d", text.Line(value, 40), limit)
			}
		case "transfer-encoding":
			return "", 0, fmt.Errorf("transfer encoding '%s' in an answer to HTTP/1.0", text.Line(value, 40))
		}
	}
}

// read reads the body.
func read(in *bufio.Reader, status string, length, limit int64) ([]byte, error) {
	most := length
	if length < 0 {
		most = limit + 1
	}
	body, err := io.ReadAll(io.LimitReader(in, most))
	switch n := int64(len(body)); {
	case err != nil:
		return nil, err
	case n < length:
		return nil, fmt.Errorf("the answer ends after %d of %d bytes", n, length)
	case n > limit:
		return nil, fmt.Errorf("the answer has more than %d bytes", limit)
	case status != "200":
		return nil, &StatusError{status, text.Line(string(bytes.TrimSpace(body[:min(n, 1000)])), 200)}
	}
	return body, nil
}

// headLine reads a line of a head, of at most 8 KiB.
func headLine(in *bufio.Reader) (string, error) {
	line, err := in.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return "", &HeadError{"the answer's head has a line of more than 8 KiB"}
	case err == io.EOF:
		return "", &HeadError{"the answer ends in its head"}
	}
	return strings.TrimRight(string(line), "\r\n"), err
}
