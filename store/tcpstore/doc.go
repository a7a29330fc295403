// Package tcpstore speaks the protocol of PyTorch's TCPStore: a server that PyTorch's
// clients can use, and a client for servers of either.
//
// A connection carries one request after the other. A request has a number and
// arguments, which the table in wire.go lists; a wait is answered when its keys are
// there. Besides PyTorch's queries the server knows one of muster's own, by which a
// connection turns into a session of another protocol: that is how agents reach a
// rendezvous that the server holds.
//
// PyTorch's protocol has no authentication. With a Guard the server asks for a job's
// token or for TLS before the first request; without one, who reaches the port can read
// and change every key.
package tcpstore
