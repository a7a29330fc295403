// Package server is a rendezvous that a server holds for the agents of a job.
//
// TorchElastic's c10d keeps the state of the rendezvous under one key of a store, and
// every agent polls, changes and replaces it. Here one server has the state: Rendezvous,
// which is pure. It takes messages, times and what agents of PyTorch write under that
// key, and returns the messages that follow. Server gives it connections and a clock;
// Client and Participation are the other end, an agent's part.
//
// The state and the rules of who takes part are those of package state, which are
// TorchElastic's: an agent of PyTorch meets the same rendezvous by the store's key (torch.go).
//
// The package neither listens nor elects who holds the rendezvous: a store hands it the
// connections that begin a session, and the backends decide where it runs.
package server
