package etcd_test

import (
	"testing"

	"github.com/muster-run/muster/internal/test/testcert"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/etcd"
)

// Certificates that only say how to know etcd are no reason to ask agents for some.
func TestOnlyEtcdsAuthority(t *testing.T) {
	spec := rendezvous.Spec{RunID: "job1", LocalWorldSize: 1, Endpoint: "127.0.0.1", MinNodes: 2, MaxNodes: 2}
	spec.Settings.TLS.CACert = testcert.New(t).File
	if _, err := etcd.New(spec); err != nil {
		t.Error(err)
	}
}
