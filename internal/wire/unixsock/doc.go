// Package unixsock opens Unix sockets that belong to one user, and keeps the directory in
// which the agents of that user listen.
//
// Every agent has a socket there, so that `muster ps`, `muster stop` and the like reach each
// job of their user on this host. The directory is private (0700), the sockets are (0600), and
// both ends check who is at the other: the directory alone would do, if nothing ever went
// wrong with it.
//
// An agent that is killed leaves its socket behind. A command that lists the agents removes it.
package unixsock
