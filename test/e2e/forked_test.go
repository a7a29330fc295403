//go:build linux

package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/pypeer"
)

// forks is the process that has imported torchrun (testdata/forked.py): an import takes
// more processor time than most of the jobs.
var forks struct {
	once sync.Once
	mu   sync.Mutex // held from a request to its answer
	conn *os.File   // nil where a fork would differ from a start
}

// fork starts torchrun without importing it again. cmd is as after its Start.
func fork(t testing.TB, cmd *exec.Cmd) error {
	t.Helper()
	forks.once.Do(func() {
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		theirs := os.NewFile(uintptr(ends[1]), "forked.py")
		defer theirs.Close()
		template := exec.Command(pypeer.Python(t), "testdata/forked.py")
		template.Env, template.ExtraFiles = usualEnv(), []*os.File{theirs}
		if err := template.Start(); err != nil { // it ends with this process
			t.Fatal(err)
		}
		conn := os.NewFile(uintptr(ends[0]), "forks")
		if n, _ := conn.Read(make([]byte, 16)); n > 0 {
			forks.conn = conn
		} else {
			conn.Close()
			t.Log("torchrun is not forked:", template.Wait())
		}
	})
	if forks.conn == nil {
		return cmd.Start()
	}
	forks.mu.Lock()
	defer forks.mu.Unlock()
	env := map[string]string{}
	for _, kv := range cmd.Env {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	request, err := json.Marshal(map[string]any{"argv": cmd.Args, "env": env})
	if err != nil {
		return err
	}
	fds := unix.UnixRights(int(cmd.Stdout.(*os.File).Fd()), int(cmd.Stderr.(*os.File).Fd()))
	if err := unix.Sendmsg(int(forks.conn.Fd()), request, fds, nil, 0); err != nil {
		return err
	}
	answer := make([]byte, 16)
	n, err := forks.conn.Read(answer)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(string(answer[:n]))
	if err != nil || pid <= 0 {
		return errors.Join(errors.New("no fork"), err)
	}
	cmd.Process, err = os.FindProcess(pid)
	return err
}
