package cli

import (
	"encoding/binary"
	"os/exec"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/procfs"
)

// Of a process that is no muster nothing is read that its memory may hold up.
func TestAgentOfAnotherProgram(t *testing.T) {
	cmd := exec.Command("cat", "run", "-")
	cmd.Args[0] = "muster"
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Skip(err)
	}
	defer cmd.Wait()
	defer in.Close()
	if agent, ok := agentOf(cmd.Process.Pid); ok {
		t.Errorf("cat is the agent %+v", agent)
	}
}

// Lines as the kernel of a little-endian machine prints them.
func TestListener(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("needs a little-endian machine")
	}
	const v4 = "   0: 0100007F:2328 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1 0 100 0 0 10 0"
	const v6 = "   0: 00000000000000000000000001000000:2329 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 78 1"
	tests := []struct {
		line, host string
		port       uint16
		ok         bool
	}{
		{v4, "127.0.0.1", 9000, true},
		{v4, "0.0.0.0", 9000, false},
		{v4, "localhost", 9000, true},
		{v6, "::1", 9001, true},
		{strings.Replace(v4, " 0A ", " 01 ", 1), "127.0.0.1", 0, false},
		{strings.Replace(v4, "0100007F", "01007F", 1), "127.0.0.1", 0, false},
		{"  sl  local_address", "127.0.0.1", 0, false},
		{"", "127.0.0.1", 0, false},
	}
	for _, tt := range tests {
		sockets := procfs.ParseSockets([]byte(tt.line))
		ok := len(sockets) == 1 && listensAt(sockets[0], tt.host)
		if ok != tt.ok || ok && sockets[0].Local.Port() != tt.port {
			t.Errorf("%q at %s: %v", tt.line, tt.host, sockets)
		}
	}
}
