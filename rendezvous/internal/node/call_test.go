package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous"
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
	conn, err := h.(rendezvous.Caller).Call(ctx, rank)
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
			l := nodes[i].(rendezvous.Caller).Calls()
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
