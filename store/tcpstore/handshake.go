package tcpstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"
	"time"
)

// lineEnd is a key that nobody has set: clients put "/" before their keys. Our
// client asks for it first, so that a server of lines of text, which HTTP's is,
// sees the end of a request and says what it is.
const lineEnd = "\r\n\r\n"

// greeting is what our client sends first: VALIDATE, which servers want in one
// piece and do not answer, and a question. torch's client sends a PING there, which
// servers before PyTorch 2.4 do not know.
var greeting = slices.Concat(opening, checkOf(lineEnd))

// checkOf is a CHECK of one key.
func checkOf(key string) []byte {
	b := appendInt([]byte{byte(qCheck)}, 1)
	b = appendInt(b, int64(len(key)))
	return append(b, key...)
}

// handshake is the opener of a connection for requests.
func handshake(ctx context.Context, nc net.Conn) error {
	var answer [1]byte
	return ask(ctx, nc, greeting, answer[:])
}

// A NotStoreError says what was seen of a server that took a connection and did
// not answer as a TCPStore does.
type NotStoreError struct {
	Remote string // Remote is the IP address and port
	Saw    string // Saw completes "the server …"
	Answer []byte // Answer is the start of what it said, if anything

	final  bool // it is another protocol's server
	closed bool // it closed the connection without a word
}

func (e *NotStoreError) Error() string {
	text := "no TCPStore handshake: the server " + e.Saw
	switch {
	case e.Guarded():
		text += fmt.Sprintf(" (%q)", bytes.TrimSpace(e.Answer)) // all of a line for people
	case len(e.Answer) > 0:
		text += fmt.Sprintf(" (%.40q)", e.Answer)
	}
	return text
}

// Guarded reports whether the server takes only clients that pass its Guard.
func (e *NotStoreError) Guarded() bool { return e.Saw == sawGuard }

func (e *NotStoreError) advice() string {
	switch e.Saw {
	case sawGuard:
		return "give this agent what the others have: token_file (or MUSTER_TOKEN), or cacert, cert and key, in " +
			"Spec.Settings; torchrun cannot take part in such a job"
	case sawTokenless:
		return "give all agents of the job, and muster store, the same token_file (or MUSTER_TOKEN), or cacert, cert and key"
	case sawOpen:
		return "a store of PyTorch's cannot hold a job with a token or certificates; let muster hold it, with the same " +
			"token_file (or MUSTER_TOKEN), or cacert, cert and key"
	}
	if e.closed {
		return "check that a TCPStore of PyTorch 2 or muster listens at that port and not another service or PyTorch 1.x, " +
			"that it admits this host, and that it stays up"
	}
	return "check that a TCPStore of PyTorch 2 or muster listens at that port and not another service"
}

const (
	sawHTTP   = "answered like an HTTP server"
	sawTLS    = "answered like a TLS server; TCPStore is not encrypted"
	sawSSH    = "answered like an SSH server"
	sawOther  = "answered in another protocol"
	sawClosed = "closed the connection without an answer"
	sawGuard  = "takes only agents of its job"
	sawOpen   = "serves everybody, and cannot prove that it belongs to the job"

	sawTokenless = "is muster's, and has no token or certificates to prove that it belongs to the job"
)

// mostAnswered is how much is read of an answer that makes no sense, and
// answerGrace for how long.
const (
	mostAnswered = 64
	answerGrace  = 100 * time.Millisecond
)

// ask sends requests that are answered by one byte each, 0 or 1, until the context
// is done.
func ask(ctx context.Context, nc net.Conn, requests, answers []byte) error {
	start := time.Now()
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err := nc.Write(requests)
	have := 0
	for err == nil && have < len(answers) {
		var n int
		n, err = nc.Read(answers[have:])
		for _, b := range answers[have : have+n] {
			if b > 1 && stop() { // else ctx has ended, and with it the time in which more could be read
				return stranger(nc, answers[:have+n])
			}
		}
		have += n
		if n > 0 {
			err = nil
		}
	}
	if err == nil && stop() {
		return nil
	}
	if failure := unanswered(nc, start, err); failure != nil {
		return failure
	}
	return fmt.Errorf("no TCPStore handshake: %w", err)
}

// unanswered says what came instead of an answer, where err is nil if the time was up. It
// returns nil for an error that has more to say.
func unanswered(nc net.Conn, start time.Time, err error) *NotStoreError {
	failure := &NotStoreError{Remote: nc.RemoteAddr().String()}
	var timeout net.Error
	switch {
	case err == nil || errors.As(err, &timeout) && timeout.Timeout():
		failure.Saw = fmt.Sprintf("took the connection and stayed silent for %v", time.Since(start).Round(time.Millisecond))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, syscall.EPIPE):
		failure.Saw, failure.closed = sawClosed, true
	default:
		return nil
	}
	return failure
}

// stranger says what an answer looks like that is not a TCPStore's.
func stranger(nc net.Conn, answer []byte) error {
	b := append(make([]byte, 0, mostAnswered), answer...)
	nc.SetReadDeadline(time.Now().Add(answerGrace))
	for len(b) < mostAnswered {
		n, err := nc.Read(b[len(b):mostAnswered])
		if b = b[:len(b)+n]; err != nil {
			break
		}
	}
	return &NotStoreError{Remote: nc.RemoteAddr().String(), Saw: looksLike(b), Answer: b, final: true}
}

// looksLike says whose answer it is.
func looksLike(b []byte) string {
	lower := bytes.ToLower(b)
	switch {
	case bytes.HasPrefix(b, []byte("HTTP/")), bytes.HasPrefix(lower, []byte("<!doctype")),
		bytes.HasPrefix(lower, []byte("<html")):
		return sawHTTP
	case isTLS(b):
		return sawTLS
	case bytes.HasPrefix(b, []byte("muster: ")):
		return sawGuard
	case bytes.HasPrefix(b, []byte("SSH-")):
		return sawSSH
	}
	return sawOther
}

// isTLS reports whether the bytes start an alert or a handshake of TLS.
func isTLS(b []byte) bool { return len(b) >= 2 && (b[0] == 0x15 || b[0] == 0x16) && b[1] == 3 }

// hello is a greeting of TLS 1.2 that every server of TLS answers, if only to refuse it.
var hello = slices.Concat(
	[]byte{0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3}, // a record, a ClientHello, its version
	make([]byte, 32),               // random
	[]byte{0, 0, 2, 0, 0x2f, 1, 0}, // no session, one cipher suite, no compression
)

// helloTimeout is how long a server may take to answer hello. It is asked once, so
// this has to do for one on a busy machine.
const helloTimeout = 5 * time.Second

// inquire asks a server on a connection of its own.
func (d *dialer) inquire(ctx context.Context, remote string, question []byte) (answers [2]byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	nc, err := d.sockets.DialContext(ctx, "tcp", remote)
	if err != nil {
		return answers, err
	}
	defer nc.Close()
	err = ask(ctx, nc, question, answers[:])
	return answers, err
}

// servesAll asks a server that does not prove anything whether it is one for everybody, and
// returns what was seen: PyTorch's, ours without a guard, or "" if it is none.
func (d *dialer) servesAll(ctx context.Context, remote string) string {
	answers, err := d.inquire(ctx, remote, slices.Concat(greeting, checkOf(sessionKey)))
	switch {
	case err != nil:
		return ""
	case answers[1] == ready:
		return sawTokenless // PyTorch's has no sessions
	}
	return sawOpen
}

// speaksTLS asks a server that closes connections without a word whether it is
// one of TLS, which has to close those that do not begin as TLS does.
func (d *dialer) speaksTLS(ctx context.Context, remote string) bool {
	_, err := d.inquire(ctx, remote, hello)
	other, ok := errors.AsType[*NotStoreError](err)
	return ok && other.Saw == sawTLS
}
