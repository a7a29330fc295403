package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/text"
)

const (
	// fetchTimeout is how long an agent has to answer.
	fetchTimeout = 5 * time.Second
	// maxState bounds an answer: a State with all that it may have is smaller.
	maxState = 48 << 20
)

// fetchState asks the agent at an address, as --health-addr has it, for its State.
// Package net/http would bring its client into a binary whose start is to be fast;
// HTTP/1.0 without it is these lines.
func fetchState(ctx context.Context, addr string) (*health.State, error) {
	network, address, err := health.ParseAddr(addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, fetchTimeout, fmt.Errorf("no answer within %v", fetchTimeout))
	defer cancel()
	body, err := get(ctx, network, address, "/v1/state")
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("ask the agent at %s: %w", addr, err)
	}
	state := new(health.State)
	if err := json.Unmarshal(body, state); err != nil {
		return nil, fmt.Errorf("ask the agent at %s: the answer is no state of a job: %w", addr, err)
	}
	if state.Version > health.StateVersion {
		return nil, fmt.Errorf("the agent at %s is a newer muster (state version %d, this one knows %d); use its own `muster top`", addr, state.Version, health.StateVersion)
	}
	return state, nil
}

// get returns the body of what is at path.
func get(ctx context.Context, network, address, path string) ([]byte, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		if e, ok := errors.AsType[*net.OpError](err); ok {
			err = e.Err
		}
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	// By whatever name we got there: the agent checks names because of browsers.
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.0\r\nHost: localhost\r\nAccept: application/json\r\n\r\n", path); err != nil {
		return nil, err
	}
	return readReply(conn)
}

// readReply reads an answer of HTTP/1.0.
func readReply(r io.Reader) ([]byte, error) {
	in := bufio.NewReaderSize(io.LimitReader(r, maxState), 8<<10)
	line, err := headLine(in)
	if err != nil {
		return nil, err
	}
	proto, rest, _ := strings.Cut(line, " ")
	status, _, _ := strings.Cut(rest, " ")
	if !strings.HasPrefix(proto, "HTTP/1.") || len(status) != 3 {
		return nil, errors.New("what answers does not speak HTTP; is this the address of --health-addr?")
	}
	length := int64(-1)
	for {
		if line, err = headLine(in); err != nil {
			return nil, err
		}
		if line == "" {
			break
		}
		name, value, _ := strings.Cut(line, ":")
		if strings.EqualFold(name, "Content-Length") {
			if length, err = strconv.ParseInt(strings.TrimSpace(value), 10, 64); err != nil || length < 0 || length > maxState {
				return nil, fmt.Errorf("the answer has a length of %s bytes", quote(strings.TrimSpace(value)))
			}
		}
	}
	body, err := io.ReadAll(in)
	if err != nil {
		return nil, err
	}
	switch {
	case length >= 0 && int64(len(body)) < length:
		return nil, fmt.Errorf("the answer ends after %d of %d bytes", len(body), length)
	case status != "200":
		return nil, fmt.Errorf("it answers %s: %s", status, text.Line(string(bytes.TrimSpace(body[:min(len(body), 1000)])), 200))
	}
	return body, nil
}

// headLine reads a line of a head, of at most 8 KiB.
func headLine(in *bufio.Reader) (string, error) {
	line, err := in.ReadSlice('\n')
	switch {
	case err == bufio.ErrBufferFull:
		return "", errors.New("the answer's head has a line of more than 8 KiB; is this the address of --health-addr?")
	case err == io.EOF:
		return "", errors.New("the answer ends in its head; is this the address of --health-addr?")
	case err != nil:
		return "", err
	}
	return strings.TrimRight(string(line), "\r\n"), nil
}
