package warm_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/pypeer"
	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/process/warm"
)

// An import that takes longer than a module may, since each of those that it imports in turn is slow:
// nothing hangs, so the template continues.
func TestSlowImport(t *testing.T) {
	l := newLab(t)
	script := l.packages(map[string]string{
		"slow": "import sys\nif '-c' in sys.argv:\n" +
			"    for i in range(9):\n        try:\n            __import__('missing%d' % i)\n        except ImportError:\n            import time\n            time.sleep(0.7)\n",
	})
	l.run(l.host().Start, 1, "-u", script) // learns
	l.limit = 5 * time.Second
	if got := l.run(l.host().Start, 1, "-u", script); got[0].Stdout != "['slow']\n" {
		t.Errorf("%+v\n%s", got[0], l.log.String())
	}
}

// A worker that is interrupted before its program has begun is so at the program's first line.
func TestInterruptedEarly(t *testing.T) {
	l := newLab(t)
	script := l.packages(map[string]string{"torch": "import os, signal\nclass default_generator:\n    seed = lambda: os.kill(os.getpid(), signal.SIGINT)\n"})
	l.run(l.host().Start, 1, "-u", script) // learns
	got := l.run(l.host().Start, 1, "-u", script)[0]
	if got.Stdout != "" || got.Code != -int(syscall.SIGINT) || !strings.Contains(got.Stderr, "KeyboardInterrupt") {
		t.Errorf("%+v\n%s", got, l.log.String())
	}
}

// template waits for one with another pid than that one, and returns its pid.
func (l *lab) template(h *warm.Host, but int) int {
	l.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if pid := h.Stats().PID; pid != 0 && pid != but {
			return pid
		}
		if time.Now().After(end) {
			l.t.Fatalf("no template:\n%s", l.log.String())
		}
	}
}

// A template is in the kernel, waiting for a file system that hangs: it cannot be killed, and holds
// nobody up. The workers start cold, and the Host ends.
func TestHangingFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts a file system, which needs root")
	}
	l := newLab(t)
	l.limit = 5 * time.Second
	fuse, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("no FUSE here: ", err)
	}
	dir := t.TempDir()
	if err := unix.Mount("muster-test", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse)); err != nil {
		unix.Close(fuse)
		t.Skip("no FUSE here: ", err)
	}
	asked := make(chan error, 1)
	go func() { // takes the requests, which cannot be interrupted then, and answers none
		buf := make([]byte, 1<<17)
		n, err := unix.Read(fuse, buf) // INIT
		if err == nil {
			// Source: struct fuse_out_header and fuse_init_out in linux/fuse.h.
			answer := make([]byte, 16+64)
			binary.NativeEndian.PutUint32(answer, uint32(len(answer)))
			copy(answer[8:16], buf[8:16])                     // unique
			binary.NativeEndian.PutUint32(answer[16:], 7)     // major
			binary.NativeEndian.PutUint32(answer[20:], 31)    // minor
			binary.NativeEndian.PutUint32(answer[36:], 1<<12) // max_write
			_, err = unix.Write(fuse, answer)
		}
		for err == nil && n > 0 {
			if n, err = unix.Read(fuse, buf); err == nil {
				select {
				case asked <- nil:
				default:
				}
			}
		}
		asked <- err
	}()
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.MNT_FORCE); err != nil {
			t.Error(err)
		}
		unix.Close(fuse)
	})
	script := l.packages(map[string]string{"hangs": "import os, sys\nif '-c' in sys.argv:\n    os.stat('" + dir + "/x')\n"})
	l.run(l.host().Start, 1, "-u", script) // learns
	ended := make(chan []ended, 1)
	go func() {
		h := l.host()
		got := l.run(h.Start, 1, "-u", script)
		h.Close()
		ended <- got
	}()
	select {
	case err := <-asked:
		if err != nil {
			t.Skip("no FUSE here: ", err)
		}
	case got := <-ended:
		t.Fatalf("the template did not come to the file system: %+v\n%s", got, l.log.String())
	}
	select {
	case got := <-ended:
		if s := l.log.String(); got[0].Stdout != "[]\n" || !strings.Contains(s, "at the import of hangs") {
			t.Errorf("%+v\n%s", got, s)
		}
	case <-time.After(testproc.Patience):
		t.Errorf("a template that cannot be killed holds the workers up:\n%s", l.log.String())
	}
}

// In a live group, a worker that takes the place of another is a fork of what is the template then:
// one that was killed meanwhile has been replaced.
func TestReplaceWarm(t *testing.T) {
	l := newLab(t)
	h := l.host()
	out := filepath.Join(l.dir, "said")
	must(t, syscall.Mkfifo(out, 0o600))
	said, err := os.OpenFile(out, os.O_RDWR, 0)
	must(t, err)
	defer said.Close()
	script := l.script("script.py", "import os, signal, sys\nframe, warm = sys._getframe(), False\nwhile frame:\n    warm = warm or frame.f_code.co_filename == '<muster warm>'\n    frame = frame.f_back\n"+
		"with open('"+out+"', 'w') as f:\n    f.write('%-7s' % warm)\nsignal.pause()\n")
	cfg := l.workers(2, "-u", script)
	cfg.Apart = true
	g, err := h.Start(cfg)
	must(t, err)
	defer g.Close(syscall.SIGKILL, 0)
	next := func(want string) {
		t.Helper()
		buf := make([]byte, 7)
		must(t, said.SetReadDeadline(time.Now().Add(time.Minute)))
		if n, err := said.Read(buf); err != nil || strings.TrimSpace(string(buf[:n])) != want {
			t.Fatalf("a worker is warm: %q, want %s; %v\n%s", buf[:n], want, err, l.log.String())
		}
	}
	next("True")
	next("True")
	first := l.template(h, 0)
	must(t, syscall.Kill(first, syscall.SIGKILL))
	l.template(h, first)
	must(t, syscall.Kill(g.PIDs()[0], syscall.SIGKILL))
	<-g.Failed()
	must(t, g.Replace(0, cfg.Args[0], cfg.Envs[0]))
	next("True")
	if s := h.Stats(); s.WarmStarts != 3 || s.ColdStarts != 0 {
		t.Errorf("statistics are %+v", s)
	}
}

// A crash leaves a core file, cold and warm.
func TestCoreFile(t *testing.T) {
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil || !regexp.MustCompile(`^core`).Match(pattern) {
		t.Skipf("core files go elsewhere: %s %v", pattern, err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil || limit.Max == 0 {
		t.Skip("no core files here")
	}
	l := newLab(t)
	script := l.script("script.py", "import os, resource\nhard = resource.getrlimit(resource.RLIMIT_CORE)[1]\nresource.setrlimit(resource.RLIMIT_CORE, (hard, hard))\n"+
		"os.chdir(os.environ['OUT'])\nos.abort()\n")
	for _, start := range []starter{l.sup.Start, l.host().Start} {
		if got := l.run(start, 1, "-u", script); got[0].Code != -int(syscall.SIGABRT) {
			t.Errorf("%+v", got[0])
		}
		cores, err := filepath.Glob(filepath.Join(l.dir, "core*"))
		if err != nil || len(cores) != 1 {
			t.Fatalf("core files %v, %v", cores, err)
		}
		must(t, os.Remove(cores[0]))
	}
	if s := l.log.String(); strings.Contains(s, "cold") {
		t.Errorf("workers have started cold:\n%s", s)
	}
}

// What torch's @record writes of an exception is the same.
func TestRecord(t *testing.T) {
	l := newLab(t)
	l.python = pypeer.Python(t)
	script := l.script("script.py", "from torch.distributed.elastic.multiprocessing.errors import record\n@record\ndef main():\n    raise ValueError('x')\nmain()\n")
	var written []string
	for _, start := range []starter{l.sup.Start, l.host().Start} {
		got := l.run(start, 1, "-u", script)
		path := filepath.Join(l.dir, "error0")
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("%v: %+v", err, got)
		}
		must(t, os.Remove(path))
		if !json.Valid(body) || !bytes.Contains(body, []byte("ValueError: x")) {
			t.Errorf("%s", body)
		}
		written = append(written, regexp.MustCompile(`"timestamp": "\d+"`).ReplaceAllString(string(body), ""), strconv.Itoa(got[0].Code), got[0].Stderr)
	}
	if diff := cmp.Diff(written[:3], written[3:]); diff != "" {
		t.Errorf("(-cold +warm):\n%s", diff)
	}
	if s := l.log.String(); strings.Contains(s, "cold") {
		t.Errorf("workers have started cold:\n%s", s)
	}
}

// A template that cannot fork, for want of memory, says so, and is not lost.
func TestForkFails(t *testing.T) {
	l := newLab(t)
	h := l.host()
	must(t, os.Mkdir(filepath.Join(l.dir, "site-packages"), 0o700))
	l.script("site-packages/sitecustomize.py", "import os\nreal = os.fork\ndef fork():\n    if os.path.exists('"+filepath.Join(l.dir, "full")+"'):\n        raise OSError(12, 'Cannot allocate memory')\n    return real()\nos.fork = fork\n")
	l.env = append(l.env, "PYTHONPATH="+filepath.Join(l.dir, "site-packages"))
	script := l.script("script.py", "print('ran')\n")
	start := func() {
		t.Helper()
		if got := l.run(h.Start, 1, "-u", script); got[0].Stdout != "ran\n" {
			t.Errorf("%+v", got[0])
		}
	}
	start()
	full := l.script("full", "")
	start()
	must(t, os.Remove(full))
	start()
	s := h.Stats()
	if log := l.log.String(); s.WarmStarts != 2 || s.ColdStarts != 1 || !strings.Contains(log, "a fork fails") {
		t.Errorf("statistics are %+v:\n%s", s, log)
	}
}
