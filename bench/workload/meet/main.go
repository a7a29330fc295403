//go:build linux

// Command meet is a crowd of rendezvous clients in one process, as the agents of
// as many hosts have one each.
//
//	meet <run ID> <endpoint> <clients> <nodes> <hosts>
//
// The round is complete with that many nodes, of this process and others. With
// "true" as the last argument one of the clients holds the rendezvous at the
// endpoint, otherwise a server does. The program prints "ready", begins when it
// reads a line, prints when the first client began, when the last one had its
// rank (nanoseconds of the monotonic clock) and how many bytes went over the
// clients' connections, and ends with its standard input.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
)

func main() {
	if len(os.Args) != 6 {
		os.Exit(64)
	}
	if err := run(os.Args[1], os.Args[2], atoi(os.Args[3]), atoi(os.Args[4]), os.Args[5] == "true"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(runID, endpoint string, clients, nodes int, hosts bool) error {
	var settings rendezvous.Settings
	if !hosts {
		settings.IsHost = &hosts
	}
	handlers := make([]rendezvous.Handler, clients)
	for i := range handlers {
		h, err := c10d.New(rendezvous.Spec{
			RunID: runID, Role: "default", LocalWorldSize: 1, Host: "host" + strconv.Itoa(i),
			Settings: settings, Logger: slog.New(slog.DiscardHandler),
			Endpoint: endpoint, MinNodes: nodes, MaxNodes: nodes, LocalAddr: "127.0.0.1",
		})
		if err != nil {
			return err
		}
		handlers[i] = h
	}
	fmt.Println("ready")
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return err
	}
	begin := now()
	if err := meet(handlers, nodes); err != nil {
		return err
	}
	end := now()
	fmt.Println(begin, end, transferred(endpoint))
	io.Copy(io.Discard, os.Stdin)
	if hosts {
		shutdown(handlers)
	}
	return nil
}

// meet returns when all have their place in the round.
func meet(handlers []rendezvous.Handler, nodes int) error {
	errs := make([]error, len(handlers))
	var all sync.WaitGroup
	for i, h := range handlers {
		all.Go(func() {
			info, err := h.Next(context.Background())
			if err == nil && info.WorldSize != nodes {
				err = fmt.Errorf("a round of %d nodes, want %d", info.WorldSize, nodes)
			}
			errs[i] = err
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func shutdown(handlers []rendezvous.Handler) {
	var all sync.WaitGroup
	for _, h := range handlers {
		all.Go(func() { h.Shutdown(context.Background()) })
	}
	all.Wait()
}

// transferred is what the kernel counts at this process's connections to the
// endpoint, both ways.
func transferred(endpoint string) (bytes uint64) {
	_, port, _ := net.SplitHostPort(endpoint)
	var limit unix.Rlimit
	unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	for fd := range int(limit.Cur) {
		peer, err := unix.Getpeername(fd)
		if err != nil {
			continue
		}
		if at, ok := peer.(*unix.SockaddrInet4); !ok || strconv.Itoa(at.Port) != port {
			continue
		}
		if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			bytes += info.Bytes_acked + info.Bytes_received
		}
	}
	return bytes
}

func now() int64 {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		os.Exit(64)
	}
	return n
}
