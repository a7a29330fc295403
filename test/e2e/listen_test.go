//go:build linux

package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Connections that say nothing take up the descriptors neither of a restart nor of a client.
func TestIdleConnections(t *testing.T) {
	if _, err := exec.LookPath("prlimit"); err != nil {
		t.Skip("needs the program prlimit")
	}
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	j := workers(t, muster(t), setup{wrap: []string{"prlimit", "--nofile=150:150"}},
		"--nnodes 1 --rdzv-backend c10d --rdzv-endpoint "+addr+" --nproc-per-node 2 --max-restarts 1",
		"ready", "a0:gate", "a0:r0:exit:3", "a0:hang", "exit:0")
	j.await("ready 0", "ready 1")
	for range 300 {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	j.gate.Open()
	j.want(0).says("75 are open").saysNot("too many open files")
}

// The workers' store of a job on one host is for this user's processes and root's.
func TestWorkersStoreOfOneHost(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	const nobody = 65534
	for _, tt := range []struct {
		flags  string
		served bool
	}{
		{"--standalone", false},
		{"--standalone --rdzv-conf open_workers_store=true", true},
		{fmt.Sprintf("--nnodes 1 --master-port %d", freePort(t)), false},
		{fmt.Sprintf("--nnodes 1 --master-port %d --rdzv-conf open_workers_store=1", freePort(t)), true},
	} {
		t.Run(tt.flags, func(t *testing.T) {
			j := workers(t, muster(t), setup{}, tt.flags+" --nproc-per-node 1", "report:$MASTER_PORT", "gate", "exit:0")
			port := j.line()
			client := func(uid uint32) bool {
				cmd := exec.Command("/bin/bash", "-c", `exec 3<>/dev/tcp/127.0.0.1/`+port+` && printf '\x00\xce\xf7\x85\x3c\x07' >&3 && head -c 8 <&3 | wc -c`)
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
				cmd.Dir = "/"
				out, err := cmd.Output()
				if text := strings.TrimSpace(string(out)); err != nil || text != "8" && text != "0" {
					t.Fatalf("a client: %q, %v", out, err)
				}
				return strings.TrimSpace(string(out)) == "8"
			}
			if !client(0) {
				t.Error("this user is refused")
			}
			if got := client(nobody); got != tt.served {
				t.Errorf("another user is served: %v, want %v", got, tt.served)
			}
			j.gate.Open()
			j.want(0)
			if !tt.served {
				j.says("tcpstore: connection refused: another user's process; if it is a worker, give --rdzv-conf open_workers_store=true", "remote=127.0.0.1:")
			}
		})
	}
}

// served reports whether a store serves a client on a host.
func (s *site) served(host int, addr string) bool {
	err := s.lab.Host(host).Do(func() error {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}
		defer nc.Close()
		_ = nc.SetDeadline(time.Now().Add(patience))
		_, _ = nc.Write([]byte{0, 0xce, 0xf7, 0x85, 0x3c, 7})
		_, err = io.ReadFull(nc, make([]byte, 8))
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			s.t.Error("neither served nor closed")
		}
		return err
	})
	return err == nil
}

// allow= holds for a job on one host with an open store.
func TestAllowOfOneHost(t *testing.T) {
	t.Parallel()
	s := newSite(t, 3)
	s.flags = func(int) string {
		return "--master-addr 10.77.0.11 --master-port 29500 --rdzv-conf open_workers_store=1,allow=10.77.0.12"
	}
	agents := s.startAll(1, "--nnodes 1")
	up := s.running(time.Time{}, 1)
	for host, want := range []bool{true, true, false} {
		if got := s.served(host, up[0].master); got != want {
			t.Errorf("host %d is served: %t", host, got)
		}
	}
	s.finish(agents...)
}

// The workers' store of many hosts is for those of the round, in each round.
func TestWorkersStoreOfManyHosts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, conf string
		served     bool
	}{
		{"guarded", "", false},
		{"opened", ",open_workers_store=true", true},
		{"quorum", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, 3)
			if s.endpoint("10.77.0.11:29400", limit9+tt.conf); tt.name == "quorum" {
				s.conf = limit9
				backend(t, "quorum").prepare(s)
			}
			served := s.served
			agents := s.startAll(2, "--nnodes 2:3 --max-restarts 1")
			up := s.await(time.Time{}, 2, "up", 2)
			if !served(0, up[0].master) || !served(1, up[0].master) {
				t.Error("a host of the round is refused")
			}
			if got := served(2, up[0].master); got != tt.served {
				t.Errorf("a stranger is served: %v, want %v", got, tt.served)
			}
			agents = append(agents, s.start(2, "--nnodes 2:3 --max-restarts 1"))
			up = s.await(last(up), 3, "up", 3)
			for host := range 3 {
				if !served(host, up[0].master) {
					t.Errorf("host %d of the round of three is refused", host)
				}
			}
			s.finish(agents...)
			said := ""
			for _, a := range agents {
				said += a.console()
			}
			if told := strings.Contains(said, "connection refused: no host of this round has the address"); told == tt.served {
				t.Errorf("the log says so: %v", told)
			}
		})
	}
}
