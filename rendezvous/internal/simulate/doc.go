// Package simulate runs the rendezvous of many agents in one process, in virtual
// time and over a simulated network, to find what goes wrong when hosts and links
// do, and what it costs a job of many hosts to meet. It is a lab: its tests run it,
// and `go run ./rendezvous/internal/simulate/sim`.
//
// What decides is real: the rendezvous, and what its messages mean to a node
// (Rendezvous and Participation of rendezvous/internal/server). Around it are models: of
// the server that holds the rendezvous, of what a muster agent does about a round, of
// PyTorch's agents (which read and compare-and-set the pickled state, by clocks of their
// own), and of the network between each host and the holder:
//
//   - A message takes the link's latency and a random part of its jitter.
//   - A message that is lost is sent again, as TCP does it: after 200 ms, 400 ms
//     and so on, up to 120 s. Loss is delay, therefore, and those behind it wait,
//     too. A partition loses everything for a while.
//   - A holder may be lost, too, where another one can take over: its rendezvous is gone. Or some of
//     the hosts are cut off with it from those that elect, which have another holder meanwhile.
//   - A process that dies takes its connection along; a host that dies does not say
//     so, and answers on its old connections with a reset once it is up again.
//
// With Config.Live the workers of a round continue in the next (docs/live.md). Who the members are
// and what agents wait for is real as well (internal/job/live); workers that train, reconfigure
// and are killed are models, and the memberships are checked: each has a UUID of its own, is made
// of workers that agree about it, continues from the furthest state that is left, and nobody waits
// for a worker that is gone.
//
// Everything that is random comes from one seed, and no two events share an
// instant, so that a seed stands for one run, byte for byte of its trace. Run
// checks while it goes, and at the end, that the promises of the rendezvous hold.
package simulate
