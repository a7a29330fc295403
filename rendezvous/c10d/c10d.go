// Package c10d is the rendezvous backend of the same name: agents meet at a
// TCPStore at the endpoint.
//
// A job on one host needs nobody to meet. Where the endpoint has a port that
// others can know its agent opens it all the same; port 0 keeps the agents' store
// in memory.
//
// For a job on many hosts there are two protocols. A muster server, in the agent of
// the endpoint's host or a `muster store`, holds the rendezvous itself:
// agents have a session with it and are told what happens. A server of
// PyTorch's only stores the state, as one value that all agents change by
// compare-and-set and look at again and again. PyTorch's agents can take part
// either way, since a muster server shows and takes that value too.
package c10d

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"

	"github.com/muster-run/muster/internal/wire/hostport"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/node"
	"github.com/muster-run/muster/store/tcpstore"
)

// DefaultPort is the endpoint's port when it names none.
// Source: DEFAULT_PORT in c10d_rendezvous_backend.py.
const DefaultPort = 29400

// ErrFileStore says that a job of several nodes has the setting store_type=file, which is
// ignored where there is one.
var ErrFileStore = errors.New("rendezvous configuration store_type=file: hosts meet at a TCPStore and not in a file; " +
	"leave store_type out, and name one of the hosts in Spec.Endpoint")

// New checks what it is given. It opens nothing; Next does. The endpoint is host[:port] of
// the store; empty means localhost. Port 0 keeps the agents' store in memory.
func New(spec rendezvous.Spec) (rendezvous.Handler, error) {
	if spec.Settings.StoreType == "file" && spec.MaxNodes > 1 {
		return nil, ErrFileStore
	}
	host, port, err := hostport.Split(spec.Endpoint, DefaultPort)
	if err != nil {
		return nil, err
	}
	if spec.MaxNodes <= 1 {
		return node.Alone("c10d", spec, host, port)
	}
	if port == 0 {
		return nil, fmt.Errorf(
			"c10d rendezvous: the endpoint %q has port 0, which the other nodes cannot know; name one, for example %s",
			spec.Endpoint, net.JoinHostPort(host, strconv.Itoa(DefaultPort)))
	}
	return node.Open("c10d", spec, host, port)
}

// Serve makes a server hold rendezvous, for all run IDs that it is asked for. It
// is called in the server's Prepare.
func Serve(s *tcpstore.Server, log *slog.Logger) { node.Serve(s, log, "") }
