package doctor_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/cmd/muster/internal/doctor"
)

// call sends bytes to a listener, half-closes, and returns all that it answers.
func call(t *testing.T, port int, request string) string {
	t.Helper()
	c, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	_ = c.(*net.TCPConn).CloseWrite()
	answer, _ := io.ReadAll(c) // a reset ends it as well
	return string(answer)
}

func TestListener(t *testing.T) {
	port, stop, err := doctor.ServeListener("secret", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	long := strings.Repeat("x", 5000)
	for _, tt := range []struct{ name, request, want string }{
		{"sink", "muster-doctor 1 secret sink\n" + long, "5000\n"},
		{"empty sink", "muster-doctor 1 secret sink\n", "0\n"},
		{"other token", "muster-doctor 1 guess sink\nx", ""},
		{"no token", "muster-doctor 1 sink\nx", ""},
		{"other command", "muster-doctor 1 secret reboot\n", ""},
		{"HTTP", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", ""},
		{"endless line", "muster-doctor 1 secret " + long, ""},
		{"nothing", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := call(t, port, tt.request); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	t.Run("ping", func(t *testing.T) {
		lines := strings.Fields(call(t, port, "muster-doctor 1 secret ping\npp"))
		if len(lines) != 2 {
			t.Fatalf("got %q, want two times", lines)
		}
		n, err := strconv.ParseInt(lines[1], 10, 64)
		if ahead := time.Until(time.Unix(0, n)); err != nil || ahead < 59*time.Minute || ahead > time.Hour {
			t.Errorf("got %q, %v ahead, want an hour", lines[1], ahead)
		}
	})
}

// A listener that ends does not wait for those that say nothing.
func TestListenerEnds(t *testing.T) {
	port, stop, err := doctor.ServeListener("-", 0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// Being answered shows that it is served.
	fmt.Fprint(c, "muster-doctor 1 - ping\np")
	if _, err := bufio.NewReader(c).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	stop()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.ReadAll(c); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("got %v, want an end", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("muster-doctor 1 - sink")
	f.Add("muster-doctor 1 ")
	f.Add(smi(0) + smi(1, "heat", "99"))
	f.Add("NVRM: Xid (PCI:0000:0a:00): 79, x\n")
	f.Fuzz(func(t *testing.T, text string) {
		if token, command := doctor.ParseRequest(text); strings.Contains(token+command, " ") {
			t.Errorf("%q: token %q, command %q", text, token, command)
		}
		for _, l := range slices.Concat(doctor.SMI([]byte(text)), doctor.JudgeXids(func(each func(string)) { each(text) })) {
			if l.Text == "" || l.Status == "" {
				t.Errorf("%q: got %+v", text, l)
			}
		}
	})
}
