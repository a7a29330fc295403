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

	"github.com/muster-run/muster/internal/job/autopsy"
	"github.com/muster-run/muster/internal/test/testproc"
)

// A worker server may answer anything.
func TestAnswers(t *testing.T) {
	dir, err := os.MkdirTemp("", "ws") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
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
