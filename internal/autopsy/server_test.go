package autopsy_test

import (
	"bufio"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/autopsy"
	"github.com/muster-run/muster/internal/test/testproc"
)

// A worker server may answer anything.
func TestAnswers(t *testing.T) {
	dir, err := os.MkdirTemp("", "ws") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	const dump = "Thread 0x1 (most recent call first):\n  File \"a.py\", line 1 in <module>\n"
	for _, tt := range []struct{ name, answer, body, want string }{
		{"with a length", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello!", "hello", ""},
		{"to the end", "HTTP/1.0 200 OK\r\n\r\n" + dump, dump, ""},
		{"an error", "HTTP/1.1 404 Not Found\r\nContent-Length: 7\r\n\r\nno such", "", "404 Not Found: no such"},
		{"nothing", "", "", "unexpected EOF"},
		{"no HTTP", "SSH-2.0-OpenSSH\r\n", "", `"SSH-2.0-OpenSSH" is not the beginning`},
		{"no end of the header", "HTTP/1.1 200 OK\r\nA: b\r\n", "", "unexpected EOF"},
		{"cut off", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", "", "unexpected EOF"},
		{"a length that is none", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "", "an answer of -1 bytes"},
		{"too long", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "", "the limit is"},
		{"in chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "", "transfer encoding"},
		{"a header line without end", "HTTP/1.1 200 OK\r\n" + strings.Repeat("x", 10_000), "", "buffer full"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			body, err := autopsy.ReadAnswer(strings.NewReader(tt.answer))
			if string(body) != tt.body || (err == nil) != (tt.want == "") {
				t.Fatalf("got %q, %v", body, err)
			}
			if err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
		})
	}

	// One that does not answer at all.
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	var server sync.WaitGroup
	server.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if line, _ := bufio.NewReader(conn).ReadString('\n'); line != "" {
				asked = append(asked, line)
			}
			server.Go(func() {
				_, _ = io.Copy(io.Discard, conn) // until the other side gives up
				conn.Close()
			})
		}
	})
	began := time.Now()
	_, err = autopsy.Post(t.Context(), 2*time.Second, path, os.Getuid(), "dump_traceback")
	if took := time.Since(began); took > testproc.Patience {
		t.Errorf("took %v", took)
	}
	if err == nil || !strings.Contains(err.Error(), "dump_traceback did not answer in time") {
		t.Errorf("error %v", err)
	}
	// And one of another user than the worker, which is not asked anything.
	if runtime.GOOS == "linux" {
		_, err := autopsy.Post(t.Context(), 2*time.Second, path, os.Getuid()+1, "dump_traceback")
		if err == nil || !strings.Contains(err.Error(), "not of the worker's user") {
			t.Errorf("another user's server: %v", err)
		}
	}
	l.Close()
	server.Wait()
	if len(asked) != 1 || asked[0] != "POST /handler/dump_traceback HTTP/1.0\r\n" {
		t.Errorf("asked %q", asked)
	}
	if _, err := autopsy.Post(t.Context(), time.Second, path, os.Getuid(), "ping"); err == nil || !strings.Contains(err.Error(), "worker_main") {
		t.Errorf("without a server: %v", err)
	}
}

func FuzzReadAnswer(f *testing.F) {
	f.Add("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
	f.Add("HTTP/1.0 500 X\r\n\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		body, err := autopsy.ReadAnswer(strings.NewReader(text))
		if err != nil && body != nil || len(body) > len(text) {
			t.Errorf("%q, %v", body, err)
		}
	})
}
