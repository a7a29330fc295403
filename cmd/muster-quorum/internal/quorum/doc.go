// Package quorum is what muster-quorum does: it elects, through etcd, the agent
// that holds a run's rendezvous, and it runs a member of etcd for runs that have
// none.
//
// The model: a run has one key, /muster/<run_id>/leader, that lives as long as
// the lease of the agent that created it. That agent leads; the others
// watch the key, and when it is gone each tries to create it again. So the run survives
// the loss of any host. The rendezvous itself is not in etcd but in the leader's own
// server: etcd carries a few bytes per change of the leader.
//
// [Elect] is an agent's bridge to a cluster, [Serve] a member of one. Both speak
// package pipe over stdin and stdout and end when stdin does.
package quorum
