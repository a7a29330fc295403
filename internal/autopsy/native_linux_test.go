package autopsy_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/autopsy"
)

const netTCP = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7451 00000000:0000 0A 00000000:00000003 00:00000000 00000000     0        0 6018042 2 000000003b1a6f98 100 0 0 10 0
   1: 0100007F:ACB8 0200A8C0:7451 01 0000000A:00000007 00:00000000 00000000     0        0 6019975 2 00000000d0365044 20 0 0 11 -1
   2: 0100007F:A669 0100007F:99B6 06 00000000:00000000 03:0000062F 00000000     0        0 0 3 000000003939d043
   3: 0100007F:A669 oops:99B6 06 00000000:00000000 03:0000062F 00000000     0        0 77 3 000000003939d043
`

const netTCP6 = `  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0000000000000000FFFF00000100007F:7451 00000000000000000000000001000000:ACB8 01 00000000:00000000 00:00000000 00000000     0        0 5 1 0 20 0 0 10 -1
   1: B80D0120000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 6 1 0 20 0 0 10 -1
`

const netUnix = `Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 21 /run/s.sock
0000000000000000: 00000003 00000000 00000000 0001 03 22
0000000000000000: 00000003 00000000 00000000 0001 03 0 /none
`

func TestParseNet(t *testing.T) {
	if runtime.GOARCH == "s390x" {
		t.Skip("the tables are those of a little-endian machine")
	}
	for _, tt := range []struct {
		protocol, text string
		want           map[uint64]autopsy.Socket
	}{
		{"tcp", netTCP, map[uint64]autopsy.Socket{
			6018042: {Protocol: "tcp", Local: "127.0.0.1:29777", State: "LISTEN", ReceiveQueue: 3},
			6019975: {Protocol: "tcp", Local: "127.0.0.1:44216", Peer: "192.168.0.2:29777", State: "ESTABLISHED", SendQueue: 10, ReceiveQueue: 7},
		}},
		{"tcp6", netTCP6, map[uint64]autopsy.Socket{
			5: {Protocol: "tcp6", Local: "127.0.0.1:29777", Peer: "[::1]:44216", State: "ESTABLISHED"},
			6: {Protocol: "tcp6", Local: "[2001:db8::1]:80", State: "LISTEN"},
		}},
		{"unix", netUnix, map[uint64]autopsy.Socket{
			21: {Protocol: "unix", Local: "/run/s.sock", State: "LISTEN"},
			22: {Protocol: "unix", State: "ESTABLISHED"},
		}},
		{"tcp", "", map[uint64]autopsy.Socket{}},
	} {
		if diff := cmp.Diff(tt.want, autopsy.ParseNet([]byte(tt.text), tt.protocol)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.protocol, diff)
		}
	}
}

func FuzzParseNet(f *testing.F) {
	f.Add([]byte(netTCP), "tcp")
	f.Add([]byte(netTCP6), "tcp6")
	f.Add([]byte(netUnix), "unix")
	f.Fuzz(func(t *testing.T, text []byte, protocol string) {
		for inode := range autopsy.ParseNet(text, protocol) {
			if inode == 0 {
				t.Error("a socket that no process has")
			}
		}
	})
}

func TestParseSyscall(t *testing.T) {
	tests := []struct{ text, want string }{
		{"running\n", ""},
		{"-1 0x7ffd 0x7f00\n", ""},
		{"99999 0x1 0x2\n", "syscall 99999"},
		{"", ""},
	}
	if runtime.GOARCH == "amd64" {
		tests = append(tests, []struct{ text, want string }{
			{"0 0x3 0x7ffd 0x1000 0x0 0x0 0x0 0x7ffd 0x7f00\n", "read fd 3"},
			{"202 0x7f2b 0x189 0x0 0x0 0x0 0xffffffff 0x7f 0x7f\n", "futex"},
			{"7 0x7f2b 0x1 0xffffffff 0x0 0x0 0x0 0x7f 0x7f\n", "poll"},
			{"0 0xffffffffffffffff 0x1\n", "read"},
		}...)
	}
	for _, tt := range tests {
		if got := autopsy.ParseSyscall(tt.text); got != tt.want {
			t.Errorf("of %q: %q, want %q", tt.text, got, tt.want)
		}
	}
}

func TestParseKernelStack(t *testing.T) {
	text := "[<0>] futex_do_wait+0x38/0x60\n[<0>] nfs_wait [nfs]+0x1/0x2\nrubbish\n[<0>] \n" + strings.Repeat("[<0>] f+0x1/0x2\n", 100)
	got := autopsy.ParseKernelStack([]byte(text))
	if len(got) != 32 || got[0] != "futex_do_wait" || got[1] != "nfs_wait [nfs]" || got[2] != "f" {
		t.Errorf("%d frames: %q", len(got), got[:3])
	}
}

func TestAppended(t *testing.T) {
	for _, tt := range []struct{ before, after, want string }{
		{"", "", ""},
		{"", "new", "new"},
		{"old", "old", ""},
		{"old", "oldnew", "new"},
		{"12345", "45678", "678"},
		{"12345", "abcde", "abcde"},
		{"12345", "", ""},
		{"aaaab", "aaabX", "X"},
	} {
		if got := autopsy.Appended([]byte(tt.before), []byte(tt.after)); string(got) != tt.want {
			t.Errorf("%q, then %q: %q, want %q", tt.before, tt.after, got, tt.want)
		}
	}
}
