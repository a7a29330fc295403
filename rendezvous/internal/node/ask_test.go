package node_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/muster-run/muster/rendezvous"
)

// asking are nodes that answer "echo" with their name and what they are sent, and others as the test says.
func asking(t *testing.T, n int, change func(i int, s *rendezvous.Spec), kinds map[string]func(context.Context, []byte) ([]byte, error)) ([]rendezvous.Handler, []*rendezvous.Info) {
	endpoint := freeEndpoint(t)
	nodes := make([]rendezvous.Handler, n)
	for i := range nodes {
		nodes[i] = open(t, endpoint, n, n, fmt.Sprint("host", i), func(s *rendezvous.Spec) { change(i, s) })
		nodes[i].Handle("echo", func(_ context.Context, request []byte) ([]byte, error) {
			return fmt.Appendf(nil, "host%d: %s", i, request), nil
		})
		for kind, answer := range kinds {
			nodes[i].Handle(kind, answer)
		}
	}
	return nodes, meet(t, nodes...)
}

func asIs(int, *rendezvous.Spec) {}

// Each agent asks each other one, itself, too, whatever the job has for security.
func TestAsk(t *testing.T) {
	t.Parallel()
	request := strings.Repeat("0123456789abcdef", 4<<10)
	for _, job := range append(guardedJobs(t), guarded{name: "without", secure: func(*rendezvous.Settings) {}}) {
		t.Run(job.name, func(t *testing.T) {
			callers, infos := asking(t, 3, func(_ int, s *rendezvous.Spec) { job.secure(&s.Settings) }, nil)
			for i := range callers {
				for k := range callers {
					want := fmt.Sprintf("host%d: %s", k, request)
					answer, err := callers[i].Ask(t.Context(), infos[k].Rank, "echo", []byte(request), len(want))
					if err != nil || string(answer) != want {
						t.Errorf("host%d asks host%d: %.20q, %v", i, k, answer, err)
					}
				}
			}
		})
	}
}

// Each reason for which there is no answer is an error.
func TestAskInVain(t *testing.T) {
	t.Parallel()
	callers, infos := asking(t, 2, asIs, map[string]func(context.Context, []byte) ([]byte, error){
		"fail":  func(context.Context, []byte) ([]byte, error) { return nil, errors.New("no\x1b[2J workers") },
		"crowd": func(ctx context.Context, _ []byte) ([]byte, error) { <-ctx.Done(); return nil, nil },
	})
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	rank := infos[1].Rank
	for _, tt := range []struct {
		name  string
		ctx   context.Context
		rank  int
		kind  string
		size  int
		limit int
		want  string
	}{
		{"the other's error", t.Context(), rank, "fail", 0, 10, "no workers"},
		{"a kind that it does not know", t.Context(), rank, "time", 0, 10, `the agent on host host1, another release of muster, has no answer to "time"`},
		{"a rank that nobody has", t.Context(), 7, "echo", 0, 10, "no agent has group rank 7"},
		{"an answer that is too long", t.Context(), rank, "echo", 100, 50, "it has 107 bytes, and the limit is 50"},
		{"one that is longer than an error may be", t.Context(), rank, "echo", 60000, 50, "no answer: it has 60007 bytes, and the limit is 1024"},
		{"a request that is too long", t.Context(), rank, "echo", 70000, 50, "a request has 70000 bytes, more than 65536"},
		{"a context that has ended", gone, rank, "echo", 0, 10, "enough"},
	} {
		answer, err := callers[0].Ask(tt.ctx, tt.rank, tt.kind, make([]byte, tt.size), tt.limit)
		if answer != nil || err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: %.20q, %v, want %s", tt.name, answer, err, tt.want)
		}
	}
}

// The answer's context ends when the one that asks gives up, and when the one that is asked leaves; more than 64
// requests at a time are refused.
func TestAskEnds(t *testing.T) {
	t.Parallel()
	begun, ended := make(chan struct{}, 100), make(chan struct{}, 100)
	callers, infos := asking(t, 2, asIs, map[string]func(context.Context, []byte) ([]byte, error){
		"wait": func(ctx context.Context, _ []byte) ([]byte, error) {
			begun <- struct{}{}
			<-ctx.Done()
			ended <- struct{}{}
			return nil, ctx.Err()
		},
	})
	rank := infos[1].Rank
	ctx, giveUp := context.WithCancel(t.Context())
	var asks sync.WaitGroup
	for range 64 {
		asks.Go(func() {
			if _, err := callers[0].Ask(ctx, rank, "wait", nil, 10); err != context.Canceled {
				t.Errorf("one that gives up: %v", err)
			}
		})
	}
	for range 64 {
		<-begun
	}
	if _, err := callers[0].Ask(t.Context(), rank, "echo", nil, 10); err == nil || err.Error() != "64 requests are being answered; try again later" {
		t.Errorf("the 65th: %v", err)
	}
	giveUp()
	asks.Wait()
	for range 64 {
		<-ended
	}
	var left atomic.Bool
	asks.Go(func() {
		if _, err := callers[0].Ask(t.Context(), rank, "wait", nil, 10); err == nil || !left.Load() {
			t.Errorf("an agent that leaves: %v", err)
		}
	})
	<-begun
	left.Store(true)
	if err := end(callers[1].Leave); err != nil {
		t.Error(err)
	}
	asks.Wait()
	if len(ended) != 1 {
		t.Errorf("%d answers have ended, want 1", len(ended))
	}
}
