package procfs_test

import (
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/procfs"
)

func TestReadSelf(t *testing.T) {
	got, err := procfs.Read(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if got.PID != os.Getpid() || got.Parent != os.Getppid() || got.Start == 0 || !got.Alive() {
		t.Errorf("got %+v", got)
	}
	all, err := procfs.All()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(all, func(s procfs.Stat) bool { return s.PID == got.PID && s.Start == got.Start }) {
		t.Error("this process is not in the list of all")
	}
}

func TestReadNobody(t *testing.T) {
	if _, err := procfs.Read(1 << 30); !os.IsNotExist(err) {
		t.Errorf("got %v", err)
	}
}

func TestEnvironOfAnother(t *testing.T) {
	cmd := exec.Command("cat")
	cmd.Env = []string{"TAG=x y"}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// An environment is empty for a moment within exec.
	if _, err := in.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	env, err := procfs.Environ(cmd.Process.Pid)
	if err != nil || !procfs.HasEnv(env, "TAG=x y") {
		t.Errorf("environment %q, %v", env, err)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// A process without an environment, or without memory, is between no two programs.
func TestExecuting(t *testing.T) {
	bare := exec.Command("cat")
	bare.Env = []string{}
	in, err := bare.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := bare.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := bare.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = in.Write([]byte("x"))
	_, _ = out.Read(make([]byte, 1)) // it has begun
	if env, err := procfs.Environ(bare.Process.Pid); err != nil || len(env) > 0 {
		t.Errorf("environment %q, %v", env, err)
	}
	if procfs.Executing(bare.Process.Pid) || procfs.Executing(os.Getpid()) || procfs.Executing(1<<30) {
		t.Error("a process that runs counts as one between two programs")
	}
	in.Close()
	_, _ = out.Read(make([]byte, 1)) // it ends
	for p, err := procfs.Read(bare.Process.Pid); err == nil && p.Alive(); p, err = procfs.Read(bare.Process.Pid) {
	}
	if procfs.Executing(bare.Process.Pid) {
		t.Error("a process that has ended counts as one between two programs")
	}
	_ = bare.Wait()
	// Of children that begin one after the other, one is seen there sooner or later.
	over, beginner := make(chan struct{}), sync.WaitGroup{}
	beginner.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
				_ = exec.Command("true").Run()
			}
		}
	})
	defer beginner.Wait()
	defer close(over)
	for self, seen := os.Getpid(), false; !seen; {
		all, err := procfs.All()
		if err != nil {
			t.Fatal(err)
		}
		seen = slices.ContainsFunc(all, func(p procfs.Stat) bool { return p.Parent == self && procfs.Executing(p.PID) })
	}
}

// lostFirst asks the test's program to end its first thread, and to continue.
const lostFirst = "PROCFS_TEST_LOST_FIRST"

func init() {
	if os.Getenv(lostFirst) != "" {
		runtime.LockOSThread() // init runs in the first thread
		go time.Sleep(10 * time.Minute)
		_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
	}
}

// A process whose first thread has ended lives on in another, and tells its environment to its
// user, who need not be root.
func TestLiving(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{lostFirst + "=1"}
	const nobody = 65534
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	for {
		p, err := procfs.Read(cmd.Process.Pid)
		if err != nil || !p.Alive() {
			t.Fatalf("%+v, %v", p, err)
		}
		thread := p.Living()
		if p.State != 'Z' {
			if thread != p {
				t.Fatalf("%+v is alive, not %+v", p, thread)
			}
			time.Sleep(time.Millisecond) // its first thread has not ended yet
			continue
		}
		if thread.PID == p.PID || thread.Group != p.Group || thread.State == 'Z' {
			t.Errorf("%+v lives in %+v", p, thread)
		}
		break
	}
	told := make(chan bool)
	go func() {
		runtime.LockOSThread() // and never again: the thread ends with the goroutine
		if os.Getuid() == 0 {
			_ = unix.Setfsuid(nobody) // of this thread alone; root's right to read all goes with it
		}
		env, err := procfs.Environ(cmd.Process.Pid)
		if err != nil || !procfs.HasEnv(env, cmd.Env[0]) {
			t.Errorf("environment %q, %v", env, err)
		}
		close(told)
	}()
	<-told
	self, err := procfs.Read(os.Getpid())
	if got := self.Living(); err != nil || got != self {
		t.Errorf("this process lives in %+v, %v", got, err)
	}
}

// A child that was orphaned comes to the main thread of a child subreaper.
func TestOrphans(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Skipf("needs to be a child subreaper: %v", err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command("sh", "-c", "cat <&3 >/dev/null 2>&1 & echo $!")
	cmd.ExtraFiles = []*os.File{r}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	orphan, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	orphans, err := procfs.Orphans()
	if err != nil || !slices.Contains(orphans, orphan) {
		t.Errorf("got %d, %v, want %d among them", orphans, err, orphan)
	}
	w.Close() // which ends it
	if _, err := unix.Wait4(orphan, nil, 0, nil); err != nil {
		t.Error(err)
	}
}

func TestWaitChannel(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	where := procfs.WaitChannel(cmd.Process.Pid)
	if want := regexp.MustCompile(`^state [RSD](, wait channel \w+)?(, stack \w+( < \w+)*)?$`); !want.MatchString(where) {
		t.Errorf("%q does not match %s", where, want)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if got, want := procfs.WaitChannel(1<<30), "state unknown"; got != want {
		t.Errorf("of nobody: got %q, want %q", got, want)
	}
}

// The memory of this process is as large as something that it has just used.
func TestPSS(t *testing.T) {
	before, err := procfs.PSS(os.Getpid())
	if err != nil {
		t.Skipf("no smaps_rollup: %v", err)
	}
	used := make([]byte, 32<<20)
	for i := range used {
		used[i] = 1
	}
	after, err := procfs.PSS(os.Getpid())
	if err != nil || after-before < 24<<20 || used[1] != 1 {
		t.Errorf("%d bytes, and %d after 32 MiB more, %v", before, after, err)
	}
}
