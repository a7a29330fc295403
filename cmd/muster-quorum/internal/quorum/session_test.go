package quorum

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/muster-run/muster/internal/wire/pipe"
)

// While etcd does not answer nobody knows whether another agent has led: it is asked again.
func TestNoAnswerIsNotKnown(t *testing.T) {
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if alone, err := new(bridge).alone(ctx, cli, reign{created: 1}, 2); alone || err == nil {
		t.Errorf("%v, %v", alone, err)
	}
}

// A frozen member takes streams and answers none, also when others do again.
type frozenMember struct {
	pb.UnimplementedWatchServer
	thawed atomic.Bool
	event  *mvccpb.Event
}

func (f *frozenMember) Watch(stream pb.Watch_WatchServer) error {
	for f.thawed.Load() {
		if _, err := stream.Recv(); err != nil {
			return nil
		}
		header := &pb.ResponseHeader{Revision: 2}
		_ = stream.Send(&pb.WatchResponse{Header: header, Created: true})
		_ = stream.Send(&pb.WatchResponse{Header: header, Events: []*mvccpb.Event{f.event}})
	}
	<-stream.Context().Done()
	return nil
}

// No watch waits for a member that is frozen with its host, whose kernel keeps the connection; the next one
// has a stream of its own.
func TestFrozenMember(t *testing.T) {
	t.Parallel()
	keys := newKeys("job")
	for name, tt := range map[string]struct {
		event *mvccpb.Event
		ask   func(context.Context, *bridge, *clientv3.Client) error
		want  error // while it is frozen
	}{
		"watch": {&mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(keys.leader)}},
			func(ctx context.Context, b *bridge, cli *clientv3.Client) error {
				return b.watch(ctx, cli, &session{ttl: time.Duration(b.cfg.TTL)}, 1)
			}, errSilentWatch},
		"alone": {&mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte(keys.leader), Value: []byte(`{"id":"a"}`), ModRevision: 2}},
			func(ctx context.Context, b *bridge, cli *clientv3.Client) error {
				alone, err := b.alone(ctx, cli, reign{id: "a", created: 1}, 2)
				if err == nil && !alone {
					t.Error("another has led")
				}
				return err
			}, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			member, server := &frozenMember{event: tt.event}, grpc.NewServer()
			pb.RegisterWatchServer(server, member)
			go server.Serve(l)
			t.Cleanup(server.Stop)
			cli, err := clientv3.New(clientv3.Config{Endpoints: []string{l.Addr().String()}, Logger: zap.NewNop()})
			if err != nil {
				t.Fatal(err)
			}
			defer cli.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second) // in which gRPC does not find out
			defer cancel()
			b := &bridge{cfg: pipe.Elect{TTL: pipe.Millis(400 * time.Millisecond)}, keys: keys, events: make(chan any, 1)}
			if err := tt.ask(ctx, b, cli); !errors.Is(err, tt.want) || ctx.Err() != nil {
				t.Errorf("while it is frozen: %v, want %v", err, tt.want)
			}
			member.thawed.Store(true)
			for err = tt.want; errors.Is(err, tt.want) && ctx.Err() == nil; {
				err = tt.ask(ctx, b, cli)
			}
			if err != nil {
				t.Errorf("of one that answers: %v", err)
			}
		})
	}
}
