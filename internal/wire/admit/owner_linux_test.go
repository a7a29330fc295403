package admit

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/testproc"
)

// TestMain is also a client of another user's: it connects to the address given and waits
// for the end of its input, or closes the connection at once.
func TestMain(m *testing.M) {
	testproc.RefuseMain()
	if os.Getenv("ADMIT_TEST_GONE") != "" {
		gone()
	}
	addr := os.Getenv("ADMIT_TEST_DIAL")
	if addr == "" {
		os.Exit(m.Run())
	}
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if os.Getenv("ADMIT_TEST_CLOSE") != "" {
		nc.Close()
	}
	fmt.Println("connected")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// gone tells whether the end of a connection that has closed it is taken for this user's, at first without
// a descriptor to spare.
func gone() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		panic(err)
	}
	nc.Close()
	if nc, err = l.Accept(); err != nil {
		panic(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		panic(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}); err != nil {
		panic(err)
	}
	fmt.Print(Mine(nc), " ")
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		panic(err)
	}
	fmt.Print(Mine(nc))
	os.Exit(0)
}

// Where the kernel cannot be asked whose a connection is, as in many sandboxes, it is
// served as before; while it only cannot be asked for want of descriptors, it is not, and then the kernel is asked.
func TestNobodyToAsk(t *testing.T) {
	noNetlink := testproc.Call{Number: unix.SYS_SOCKET, Mask: ^uint32(0), Value: unix.AF_NETLINK, Errno: unix.EAFNOSUPPORT}
	for want, wrap := range map[string][]string{"true true": testproc.Refuse(noNetlink), "false false": {}} {
		if want == "false false" && !canAsk() {
			continue
		}
		argv := append(wrap, testproc.Program())
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "ADMIT_TEST_GONE=1")
		if out, err := cmd.Output(); err != nil || string(out) != want {
			t.Errorf("%q: %s, %v, want %s", wrap, out, err, want)
		}
	}
}

func TestMine(t *testing.T) {
	if !canAsk() {
		t.Skip("the kernel does not tell whose a socket is")
	}
	for _, tt := range []struct {
		name, listen, dial string
		uid                int
		close              bool
		want               bool
	}{
		{"this user", "127.0.0.1:0", "127.0.0.1", -1, false, true},
		{"to a listener of both families", ":0", "127.0.0.1", -1, false, true},
		{"IPv6", ":0", "::1", -1, false, true},
		{"another address", ":0", "127.0.0.2", -1, false, true},
		{"another user", "127.0.0.1:0", "127.0.0.1", 65534, false, false},
		{"another user, to a listener of both families", ":0", "127.0.0.1", 65534, false, false},
		{"another user, IPv6", ":0", "::1", 65534, false, false},
		{"another user who has gone", ":0", "127.0.0.1", 65534, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := net.Listen("tcp", tt.listen)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), "ADMIT_TEST_DIAL="+net.JoinHostPort(tt.dial, fmt.Sprint(l.Addr().(*net.TCPAddr).Port)))
			if tt.close {
				cmd.Env = append(cmd.Env, "ADMIT_TEST_CLOSE=1")
			}
			if tt.uid >= 0 {
				if os.Geteuid() != 0 {
					t.Skip("needs root")
				}
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(tt.uid), Gid: uint32(tt.uid)}}
			}
			in, _ := cmd.StdinPipe()
			out, _ := cmd.StdoutPipe()
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Wait()
			defer in.Close()
			said := make([]byte, 200)
			n, _ := out.Read(said)
			if text := string(said[:n]); !strings.HasPrefix(text, "connected") {
				if tt.dial == "::1" {
					t.Skip("this system has no IPv6")
				}
				t.Fatal(text)
			}
			nc, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			if got := Mine(nc); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
