//go:build linux

package e2e

import (
	"fmt"
	"net"
	"os/exec"
	"testing"
)

// Connections that say nothing take up the descriptors neither of a restart nor of a client.
func TestIdleConnections(t *testing.T) {
	if _, err := exec.LookPath("prlimit"); err != nil {
		t.Skip("needs the program prlimit")
	}
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	j := workers(t, muster(t), setup{wrap: []string{"prlimit", "--nofile=150:150"}},
		"--nnodes 1 --rdzv-backend c10d --rdzv-endpoint "+addr+" --nproc-per-node 2 --max-restarts 1",
		"ready", "a0:gate", "a0:r0:exit 3", "a0:hold", "exit 0")
	j.await("ready 0", "ready 1")
	for range 300 {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	j.gate.open()
	j.want(0).says("75 are open").saysNot("too many open files")
}
