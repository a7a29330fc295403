//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// measureLocalStore has many clients on 16 agents meet: at the store of the agent with rank 0, and
// at those of --store local. torchrun has nothing like it.
func measureLocalStore(l *lab) ([]*row, error) {
	const agents = 16
	n := min(20_000, l.descriptors()-4_000) // the process with the clients and the shared store need some more
	if l.quick {
		n = 2_000
	}
	var rows []*row
	for _, where := range []string{"shared", "local"} {
		what := fmt.Sprintf("store: %s clients of %d agents, --store %s: ", thousands(n), agents, where)
		connect, meet := &row{What: what + "they connect"}, &row{What: what + "then each adds and waits for the last one"}
		conns, cpu := &row{What: what + "sockets of the holder, without those of its own host's clients", Unit: count}, &row{What: what + "CPU time of the holder"}
		if where == "local" {
			connect.GoalText, meet.GoalText, conns.GoalText = "half of shared", "half of shared", "a twentieth of shared"
		}
		for range l.n(3, 1) {
			got, err := l.localStoreOnce(agents, n, where)
			if err != nil {
				return nil, fmt.Errorf("--store %s: %w", where, err)
			}
			connect.add(muster, got.connect)
			meet.add(muster, got.meet)
			conns.add(muster, float64(got.conns))
			cpu.add(muster, got.cpu)
		}
		rows = append(rows, connect, meet, conns, cpu)
	}
	rows[0].Note = "all on this machine, with one client process; on hosts of their own the agents of --store local would work at the same time"
	return rows, nil
}

type storeCrowd struct {
	connect, meet, cpu float64
	conns              int
}

// localStoreOnce starts agents whose workers say where they meet, and lets clients meet there.
func (l *lab) localStoreOnce(agents, n int, where string) (got storeCrowd, err error) {
	port, err := freePort()
	if err != nil {
		return got, err
	}
	jobs := make([]*job, agents)
	for i := range jobs {
		jobs[i], err = l.start(l.hostArgv(muster, i, port, fmt.Sprint(agents), []string{"--store=" + where},
			"/bin/sh", "-c", `echo "$MASTER_ADDR:$MASTER_PORT" >> $BENCH_EVENTS; exec sleep 600`), console{})
		if err != nil {
			return got, err
		}
		defer jobs[i].discard()
		defer jobs[i].wait()
		defer jobs[i].signal(syscall.SIGTERM)
		if i == 0 { // which is to hold the rendezvous
			if err := listens(port); err != nil {
				return got, err
			}
		}
	}
	addrs := make([]string, agents)
	for i, j := range jobs {
		if addrs[i], err = j.says(); err != nil {
			return got, err
		}
	}
	before, err := activityOf(jobs[0].pid)
	if err != nil {
		return got, err
	}
	clients := make([]*client, n)
	defer func() {
		for _, c := range clients {
			if c != nil {
				c.Close()
			}
		}
	}()
	var g errgroup.Group
	g.SetLimit(256)
	begin := now()
	for i := range n {
		g.Go(func() (err error) {
			// The search for a free port would be most of what is measured if all had one address.
			if clients[i], err = dialFrom(fmt.Sprintf("127.0.1.%d", 1+i%32), addrs[i%agents], false); err == nil {
				clients[i].in = make([]byte, 8)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return got, err
	}
	got.connect = float64(now()-begin) / 1e9
	begin = now()
	g = errgroup.Group{}
	for _, c := range clients {
		g.Go(func() error {
			if err := c.exchange(addRequest(nil, "/crowd", 1), 8); err != nil {
				return err
			}
			if c.number() == int64(n) {
				if _, err := c.Write(setRequest(nil, "/last", "1")); err != nil {
					return err
				}
			}
			return c.exchange(waitRequest(nil, "/last"), 1)
		})
	}
	if err := g.Wait(); err != nil {
		return got, err
	}
	got.meet = float64(now()-begin) / 1e9
	after, err := activityOf(jobs[0].pid)
	got.cpu = after.minus(before).CPU
	got.conns = sockets(jobs[0].pid) - (n+agents-1)/agents
	return got, err
}

// listens waits until somebody listens at a port.
func listens(port string) error {
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(end) {
			return err
		}
	}
}

// says waits for the line that the job's worker writes into the events file.
func (j *job) says() (string, error) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		text, err := os.ReadFile(filepath.Join(j.dir, "events"))
		if err != nil {
			return "", err
		}
		if line, whole := strings.CutSuffix(string(text), "\n"); whole {
			return line, nil
		}
	}
	return "", errors.New("no worker has started: " + j.console())
}

// sockets counts those that a process has open.
func sockets(pid int) (n int) {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		if what, err := os.Readlink(link); err == nil && strings.HasPrefix(what, "socket:") {
			n++
		}
	}
	return n
}
