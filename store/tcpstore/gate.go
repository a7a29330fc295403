package tcpstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync/atomic"

	"github.com/muster-run/muster/internal/wire/admit"
)

// A Limit is how many connections servers may have together. At the limit a new one takes the
// place of the oldest that has not begun as a client does, or is closed if there is none.
type Limit struct {
	Max  int
	open atomic.Int64
}

// A Guard lets the ends of a connection prove to each other that they may use it. Accept is
// for the end that a client has connected to, Connect for the client's; both return the
// connection to continue with, and do not close the one that they are given. Accept sees to it
// itself that nobody holds it up. It returns io.EOF for a client that has sent nothing.
//
// An error of Connect that is neither a timeout nor an end of the connection is final. It may
// have a method Advice() string, which says what to do.
type Guard interface {
	Accept(nc net.Conn) (net.Conn, error)
	Connect(ctx context.Context, nc net.Conn) (net.Conn, error)
}

// A gate decides which connections a server keeps. It counts those that are turned away,
// and logs one of a kind in ten seconds. Nothing in it changes but the tallies, which
// anybody may use.
type gate struct {
	log      *slog.Logger
	allow    admit.List
	admitted func(net.Conn) string // nil: all
	limit    *Limit                // never nil
	guard    Guard                 // nil: none
	tallies  [len(reasons)]admit.Tally
}

// A reason is why a connection is turned away, an index into reasons.
type reason int

const (
	notAllowed reason = iota // by Allow or Admit
	unproven                 // by the guard
	hasToken                 // it has a token, and the server has no guard
	tooMany                  // by the limit
	noClient                 // it has not begun as a client does
	badRequest
)

// reasons are, for each of them, what the connection was, as the log counts it, and what
// the log says in the end of those that had no line of their own.
var reasons = [...]struct{ was, rest string }{
	notAllowed: {"refused", "tcpstore: more connections were refused"},
	unproven:   {"refused", "tcpstore: more connections were refused: they did not prove that they belong to the job"},
	hasToken:   {"refused", "tcpstore: more connections were refused: the agents have a token, but this store has none"},
	tooMany:    {"closed", "tcpstore: more connections were closed: too many were open"},
	noClient:   {"closed", "tcpstore: more connections were closed: they did not begin as a client of PyTorch 2 does"},
	badRequest: {"closed", "tcpstore: more connections were closed for bad requests"},
}

// turnAway counts a connection, and logs msg unless it has just logged another for the reason.
func (g *gate) turnAway(why reason, remote net.Addr, msg string, args ...any) {
	g.tallies[why].Warn(g.log, msg, reasons[why].was, append([]any{"remote", remote.String()}, args...)...)
}

// finish logs what turnAway has not.
func (g *gate) finish() {
	for why := range reasons {
		g.tallies[why].Finish(g.log, reasons[why].rest, reasons[why].was)
	}
}

// refused returns how many connections Allow, Admit and the guard have turned away.
func (g *gate) refused() int64 { return g.tallies[notAllowed].Count() + g.tallies[unproven].Count() }

// admits reports whether a connection may come from where it does.
func (g *gate) admits(nc net.Conn) bool {
	remote := nc.RemoteAddr()
	if !g.allow.Admits(remote) {
		g.turnAway(notAllowed, remote, "tcpstore: connection refused: the address is not in an allowed network",
			"allow", fmt.Sprint(g.allow))
		return false
	}
	if g.admitted == nil {
		return true
	}
	why := g.admitted(nc)
	if why != "" {
		g.turnAway(notAllowed, remote, "tcpstore: connection refused: "+why)
	}
	return why == ""
}

// prove lets a connection pass the guard, and returns the one to continue with.
func (g *gate) prove(raw net.Conn) (net.Conn, error) {
	if g.guard == nil {
		return raw, nil
	}
	nc, err := given(g.guard.Accept(raw))
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		g.turnAway(unproven, raw.RemoteAddr(), "tcpstore: connection refused: "+err.Error())
	}
	return nc, err
}

// given is what a Guard, or Follow's dial, returned; nothing at all is an error.
func given(nc net.Conn, err error) (net.Conn, error) {
	if nc == nil && err == nil {
		err = errors.New("the Guard, or Follow's dial, returned neither a connection nor an error")
	}
	return nc, err
}

// report logs what a client did wrong, if that is why its connection ended.
func (g *gate) report(remote net.Addr, err error) {
	bad, ok := errors.AsType[*requestError](err)
	switch {
	case !ok:
	case errors.Is(err, errHas):
		g.turnAway(hasToken, remote, "tcpstore: connection refused: "+bad.Error())
	case bad.opening:
		g.turnAway(noClient, remote, "tcpstore: connection closed: "+bad.Error())
	default:
		g.turnAway(badRequest, remote, "tcpstore: connection closed: "+bad.Error())
	}
}
