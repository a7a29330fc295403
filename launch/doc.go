// Package launch is the launcher as a library: a Config says what one host of a
// job runs and how, Run runs it and returns when it has ended.
//
// The command line is one way to make a Config (package cmd/muster/internal/runline); a Go
// program makes its own, beginning with Default. Resolve checks a Config,
// reports every problem at once and decides which rendezvous is used.
//
// Source: torch/distributed/run.py and torch/distributed/launcher/api.py.
package launch
