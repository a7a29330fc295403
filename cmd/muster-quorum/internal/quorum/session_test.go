package quorum

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
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
