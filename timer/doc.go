// Package timer is a watchdog for hangs: a worker says "kill me if this is not
// done by then", and a server beside it does so at that time unless the worker
// takes it back.
//
// A timer is named by a process id and a scope, any text. Acquiring it again
// replaces it, releasing an unknown one is harmless, and when one of them expires
// the process gets that timer's signal and all its timers are dropped.
//
//   - [Server] is the core. It keeps the timers and acts at the earliest deadline;
//     it does nothing in between. [Server.Register] feeds it directly. It acts while Run runs.
//   - [LocalServer] feeds it from a queue within a program, which [LocalClient] fills.
//   - [FileServer] feeds it from a FIFO that PyTorch's FileTimerClient writes to,
//     and [FileClient] writes to the FIFO of PyTorch's FileTimerServer.
//   - [SocketServer] feeds it from a Unix socket that answers and says who asks, for
//     [SocketClient] and for the Python package muster; heartbeats come that way too.
//
// [StartLocal], [StartFIFO] and [StartSocket] start a server with what feeds it, as one object
// that Close ends. For several at one server, there are NewServer, Run, Listen and Serve.
//
// A deadline is a time of the wall clock, because a worker and its server agree on
// nothing else. Only the process that registered is ever signalled, never another
// that got its number later: see [Config].
//
// The package does not restart anything and keeps no evidence; [Config.Reap] is
// where the program that runs the workers does that.
package timer
