package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store/tcpstore"
)

// echo answers calls: it sends back what it reads up to a newline, with its name.
func echo(l net.Listener, name string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			var text [64]byte
			n, _ := conn.Read(text[:])
			fmt.Fprintf(conn, "%s: %s", name, text[:n])
		}()
	}
}

// ask calls an agent and returns what it answers.
func ask(ctx context.Context, h rendezvous.Handler, rank int, text string) (string, error) {
	conn, err := h.Call(ctx, rank)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, text); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}

// Each agent reaches each other one, also the holder, and itself; one that has left, one
// that takes no calls, and a rank that nobody has are named.
func TestCalls(t *testing.T) {
	t.Parallel()
	endpoint := freeEndpoint(t)
	nodes := make([]rendezvous.Handler, 3)
	for i := range nodes {
		nodes[i] = open(t, endpoint, 3, 3, fmt.Sprint("host", i), nil)
		if i < 2 {
			l, _ := nodes[i].Calls()
			defer l.Close()
			go echo(l, fmt.Sprint("host", i))
		}
	}
	if _, err := ask(t.Context(), nodes[0], 0, "x"); err == nil || !strings.Contains(err.Error(), "no agent of this job can be called") {
		t.Errorf("before the rendezvous: %v", err)
	}
	infos := meet(t, nodes...)
	for i := range nodes {
		for k := range nodes {
			answer, err := ask(t.Context(), nodes[i], infos[k].Rank, "hello\n")
			if k == 2 {
				if err == nil || !strings.Contains(err.Error(), "the agent on host host2 takes no calls") {
					t.Errorf("host%d calls host2: %q, %v", i, answer, err)
				}
				continue
			}
			if want := fmt.Sprintf("host%d: hello\n", k); answer != want || err != nil {
				t.Errorf("host%d calls host%d: %q, %v", i, k, answer, err)
			}
		}
	}
	if _, err := ask(t.Context(), nodes[2], 7, "x"); err == nil || !strings.Contains(err.Error(), "no agent has group rank 7") {
		t.Errorf("rank 7: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if _, err := ask(ctx, nodes[2], infos[0].Rank, "x"); err == nil {
		t.Error("a call whose context has ended")
	}
}

// Agents with a token, certificates or both call each other, those that do not hold the rendezvous
// too.
func TestCallsOfGuardedJob(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("0123456789abcdef", 1<<16)
	for _, job := range guardedJobs(t) {
		t.Run(job.name, func(t *testing.T) {
			endpoint := freeEndpoint(t)
			nodes := make([]rendezvous.Handler, 3)
			for i := range nodes {
				nodes[i] = open(t, endpoint, 3, 3, fmt.Sprint("host", i), func(c *rendezvous.Spec) { job.secure(&c.Settings) })
				l, _ := nodes[i].Calls()
				defer l.Close()
				go func() {
					for {
						conn, err := l.Accept()
						if err != nil {
							return
						}
						go func() {
							defer conn.Close()
							_, _ = io.Copy(conn, conn)
						}()
					}
				}()
			}
			infos := meet(t, nodes...)
			for i := range nodes {
				for k := range nodes {
					conn, err := nodes[i].Call(t.Context(), infos[k].Rank)
					if err != nil {
						t.Fatalf("host%d calls host%d: %v", i, k, err)
					}
					_ = conn.SetDeadline(time.Now().Add(patience))
					go func() { _, _ = io.WriteString(conn, text) }()
					answer := make([]byte, len(text))
					if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != text {
						t.Errorf("host%d calls host%d: another text, %v", i, k, err)
					}
					conn.Close()
				}
			}
		})
	}
}

// Thousands of calls of readers who never hang up are in the way of nobody: another host joins,
// and agents reach each other.
func TestCallsBesideRendezvous(t *testing.T) {
	t.Parallel()
	const each, conns = 250, 240
	endpoint := freeEndpoint(t)
	agent := func(i int) rendezvous.Handler {
		h := open(t, endpoint, 4, 4, fmt.Sprint("host", i), func(c *rendezvous.Spec) {
			c.Conns, c.Settings.IsHost = &tcpstore.Limit{Max: conns}, new(i == 0)
		})
		l, _ := h.Calls()
		t.Cleanup(func() { l.Close() })
		go echo(l, fmt.Sprint("host", i))
		return h
	}
	nodes := []rendezvous.Handler{agent(0), agent(1), agent(2), agent(3)}
	meet(t, nodes...)
	ctx, hangUp := context.WithTimeout(t.Context(), patience)
	defer hangUp()
	var flood sync.WaitGroup
	defer flood.Wait()
	var open, refused atomic.Int64
	full := make(chan struct{})
	for i := range 12 {
		flood.Go(func() {
			for range each {
				conn, err := nodes[i%3].CallToRead(ctx, (i+1)%3)
				if err == nil {
					open.Add(1)
					defer conn.Close()
				} else if refused.Add(1) == 1 {
					close(full)
				}
			}
		})
	}
	<-full
	if err := end(nodes[3].Leave); err != nil {
		t.Fatal(err)
	}
	nodes[3] = agent(3)
	for range 3 {
		infos := meet(t, nodes...)
		for i, info := range infos {
			from := (i + 1) % len(nodes)
			if answer, err := ask(ctx, nodes[from], info.Rank, "hello\n"); answer != fmt.Sprintf("host%d: hello\n", i) {
				t.Errorf("host%d calls host%d: %q, %v", from, i, answer, err)
			}
		}
	}
	flood.Wait()
	if open.Load() == 0 || open.Load()+refused.Load() != 12*each {
		t.Errorf("%d open, %d refused", open.Load(), refused.Load())
	}
}
