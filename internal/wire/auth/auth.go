// Package auth lets the two ends of a connection between agents prove to each other
// that they belong to one job, before anything else is read from either: by a token
// that both have, by certificates of one authority (TLS 1.3), or by both.
//
// A token never travels. Each end sends a nonce; then the end that has connected, and
// after it the other, sends an HMAC of both nonces under the token, with words of its own
// in it, so that nothing can be sent back or used twice. Inside TLS the HMAC also covers a
// secret of the connection, and so cannot be passed on by somebody in the middle.
// Without TLS a token keeps strangers out, but an attacker who can change packets on their way
// can take over a connection once it is open.
//
// Which host has which certificate does not matter: a host with a certificate of the authority
// takes part.
package auth

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// Config says what both ends have to have. The zero Config asks for nothing.
type Config struct {
	// Token is shared by all agents of a job, MinToken bytes or more; "" means that of
	// TokenFile, and none without one.
	Token, TokenFile string
	// CACert, Cert and Key are files in PEM, all of them or none: the authority, and this
	// host's certificate and key.
	CACert, Cert, Key string
}

// A Guard proves and asks for proof. It may be used concurrently.
type Guard struct {
	token []byte      // nil: none is asked for
	tls   *tls.Config // nil: no TLS
}

// New reads the files. It returns nil if nothing is asked for.
func New(cfg Config) (*Guard, error) {
	g := &Guard{}
	var errs []error
	if cfg.Token == "" && cfg.TokenFile != "" {
		var err error
		cfg.Token, err = ReadSecret("token_file", cfg.TokenFile)
		errs = append(errs, err)
	}
	if cfg.Token != "" {
		g.token = []byte(cfg.Token)
		errs = append(errs, checkToken(cfg.Token))
	}
	var err error
	g.tls, err = tlsConfig(&cfg)
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if g.token == nil && g.tls == nil {
		return nil, nil
	}
	return g, nil
}

// limit is how long both ends have together, and lastWords how long the one that is
// refused may take to read why.
const (
	limit     = 10 * time.Second
	lastWords = time.Second
)

// A message begins with its kind. A refusal is a line of text that begins with "muster:",
// for people, too, who connect by other means.
const (
	hello     = "\xaamuster\x01" // and a nonce, from either end
	tokenless = 'n'              // instead of a hello, inside TLS
	proven    = '\xaa'           // the end that was connected to is content, and proves that it has the token, too
	nonceSize = 32
	maxLine   = 200
)

// A RefusedError says why there is no connection. Nothing is gained by another attempt.
type RefusedError struct {
	Reason string // what the other end is, or has said
	Help   string // what to do
}

func (e *RefusedError) Error() string { return e.Reason }

// Advice says what to do.
func (e *RefusedError) Advice() string { return e.Help }

const (
	helpToken = "give all agents of the job, and muster store, the same token_file in Spec.Settings (or MUSTER_TOKEN)"
	helpTLS   = "give all agents of the job, and muster store, cacert, cert and key of one authority, in Spec.Settings"
)

// Accept lets the other end, which has connected, prove itself, and returns the connection to
// continue with. An error is why it is refused; it has been told. It is io.EOF if nothing came.
func (g *Guard) Accept(nc net.Conn) (net.Conn, error) {
	nc.SetDeadline(time.Now().Add(limit))
	conn, err := g.accept(nc)
	if err != nil {
		return nil, err
	}
	return conn, nc.SetDeadline(time.Time{})
}

func (g *Guard) accept(nc net.Conn) (conn net.Conn, err error) {
	conn = nc
	var binding []byte
	if g.tls != nil {
		secure := tls.Server(nc, g.tls)
		if err := secure.Handshake(); err != nil {
			if _, plain := errors.AsType[tls.RecordHeaderError](err); plain {
				return nil, refuse(nc, "this store takes TLS only", "it does not speak TLS: an agent without cacert, cert and "+
					"key, or torchrun, which cannot take part in such a job")
			}
			return nil, err
		}
		if binding, err = bind(secure); err != nil {
			return nil, err
		}
		conn = secure
	}
	answer := []byte{proven}
	if g.token == nil {
		var first [1]byte
		if _, err := io.ReadFull(conn, first[:]); err != nil {
			return nil, err
		}
		if first[0] != tokenless {
			return nil, refuse(conn, "this store has no token", "it has a token, and this store none")
		}
	} else {
		theirs := make([]byte, len(hello)+nonceSize)
		if err := readHello(conn, theirs); err != nil {
			if errors.Is(err, errNotHello) {
				return nil, refuse(conn, "this store takes agents with its token only",
					"it has no token: an agent without one, or torchrun, which cannot take part in a job with a token")
			}
			return nil, err
		}
		ours := newHello()
		if _, err := conn.Write(ours); err != nil {
			return nil, err
		}
		proof := make([]byte, sha256.Size)
		if _, err := io.ReadFull(conn, proof); err != nil {
			return nil, err
		}
		if !hmac.Equal(proof, g.prove(connecting, theirs, ours, binding)) {
			return nil, refuse(conn, "this store has another token", "it has another token")
		}
		answer = append(answer, g.prove(accepting, theirs, ours, binding)...)
	}
	_, err = conn.Write(answer)
	return conn, err
}

// Connect proves this end to the one that it has connected to, and lets that prove itself. It
// returns the connection to continue with. The error is a *RefusedError if there is no point in
// another attempt.
func (g *Guard) Connect(ctx context.Context, nc net.Conn) (net.Conn, error) {
	nc.SetDeadline(time.Now().Add(limit))
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	conn, err := g.connect(nc)
	if err == nil && stop() {
		err = nc.SetDeadline(time.Time{})
	}
	return conn, err
}

func (g *Guard) connect(nc net.Conn) (conn net.Conn, err error) {
	conn = nc
	var binding []byte
	if g.tls != nil {
		secure := tls.Client(nc, g.tls)
		if err := secure.Handshake(); err != nil {
			return nil, tlsFault(err)
		}
		if binding, err = bind(secure); err != nil {
			return nil, err
		}
		conn = secure
	}
	ours, theirs := newHello(), make([]byte, len(hello)+nonceSize)
	if g.token == nil {
		ours = []byte{tokenless}
	}
	if _, err := conn.Write(ours); err != nil {
		return nil, err
	}
	if g.token != nil {
		if err := readAnswer(conn, theirs[:1]); err != nil {
			return nil, err
		}
		if err := readHello(io.MultiReader(strings.NewReader(string(theirs[:1])), conn), theirs); err != nil {
			if errors.Is(err, errNotHello) {
				err = &RefusedError{Reason: "the store answered in another protocol when asked to prove that it has the token",
					Help: helpToken}
			}
			return nil, err
		}
		if _, err := conn.Write(g.prove(connecting, ours, theirs, binding)); err != nil {
			return nil, err
		}
	}
	var last [1 + sha256.Size]byte
	if err := readAnswer(conn, last[:1]); err != nil {
		return nil, err
	}
	if g.token == nil {
		return conn, nil
	}
	if _, err := io.ReadFull(conn, last[1:]); err != nil {
		return nil, err
	}
	if !hmac.Equal(last[1:], g.prove(accepting, ours, theirs, binding)) {
		return nil, &RefusedError{Reason: "the store has not proved that it has the token", Help: helpToken}
	}
	return conn, nil
}

// The words of either end in what it proves.
const (
	connecting = "muster agents' store 1, the end that connects\x00"
	accepting  = "muster agents' store 1, the end that accepts\x00"
)

// prove is what only those can send that have the token: of one end, for one connection.
func (g *Guard) prove(words string, connector, acceptor, binding []byte) []byte {
	mac := hmac.New(sha256.New, g.token)
	io.WriteString(mac, words)
	mac.Write(connector)
	mac.Write(acceptor)
	mac.Write(binding)
	return mac.Sum(nil)
}

func newHello() []byte {
	b := append(make([]byte, 0, len(hello)+nonceSize), hello...)
	b = b[:len(hello)+nonceSize]
	rand.Read(b[len(hello):])
	return b
}

var errNotHello = errors.New("no agent with a token")

// readHello reads a hello to the end, or up to where it is none.
func readHello(r io.Reader, b []byte) error {
	for n := 0; n < len(b); {
		m, err := r.Read(b[n:])
		n += m
		if !strings.HasPrefix(hello, string(b[:min(n, len(hello))])) {
			return errNotHello
		}
		if err != nil && n < len(b) {
			if n > 0 && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// readAnswer reads the first byte of an answer, or the whole of a refusal.
func readAnswer(r io.Reader, first []byte) error {
	if _, err := io.ReadFull(r, first); err != nil {
		return tlsFault(err)
	}
	switch first[0] {
	case proven:
		return nil
	case 'm':
		line := make([]byte, 0, maxLine)
		for b := first; len(line) < maxLine && b[0] != '\r'; {
			if line = append(line, b[0]); len(line) == maxLine {
				break
			}
			if _, err := io.ReadFull(r, b); err != nil {
				break
			}
		}
		if text, ours := strings.CutPrefix(string(line), "muster: "); ours {
			help := helpToken
			if strings.Contains(text, "TLS") {
				help = helpTLS
			}
			return &RefusedError{Reason: fmt.Sprintf("the store refuses this agent: %q", text), Help: help}
		}
	}
	return &RefusedError{Reason: "the store answered in another protocol when asked to prove that it belongs to the job",
		Help: helpToken}
}

// refuse tells the other end why, waits a moment until it has read that, and returns what to log.
func refuse(conn net.Conn, tell, why string) error {
	conn.SetDeadline(time.Now().Add(lastWords))
	if _, err := io.WriteString(conn, "muster: "+tell+"\r\n"); err == nil {
		// What has not been read when a connection is closed takes the text with it.
		if half, ok := conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
			io.CopyN(io.Discard, conn, 64<<10)
		}
	}
	return errors.New(why)
}
