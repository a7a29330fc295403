package warm

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/files/tempdir"
	"github.com/muster-run/muster/internal/host/children"
	"github.com/muster-run/muster/internal/host/numa"
	"github.com/muster-run/muster/process"
)

//go:embed template.py
var source []byte

// command is what the template's interpreter runs; its end is what ps shows. With -c Python looks
// for modules in the current directory, in which others may have put some, first.
const command = `import sys; sys.path[:1] == [""] and sys.path.pop(0); exec(compile(open(3,'rb',closefd=False).read(),'<muster warm>','exec'),{'__name__':'muster_warm'})  # muster: template of warm starts`

// killTime is how long a template may take to end when it is killed. One that the kernel does not
// end, since a file system hangs, is left behind.
const killTime = 2 * time.Second

// answerTime is how long a template may take for one step of a fork.
const answerTime = 10 * time.Second

// maxFrame bounds what a template says at once.
const maxFrame = 1 << 20

// A template is a process that forks workers. One goroutine reads what it says; load, and after
// it fork, wait for that. Only one of them runs at a time.
//
// A fork takes three steps, for each of which the template has answerTime (template.py):
//
//	fork  what the worker runs, with its files. The answer is pid, error, or stale.
//	go    sent when adopt has returned. The worker waits for it, still the child of the process that has
//	      forked it: by the time it is an orphan, the Supervisor knows it and does not reap it as a stranger,
//	      and before it runs anything it is in its cgroup. no, or the end of the socket, ends it instead.
//	gone  the answer to go: the process between is reaped, and the worker is this program's child.
//
// After any other answer nobody knows what the next one would be about, so the template ends (lost).
type template struct {
	program *program
	names   []string // what it was told to import
	learn   string   // the directory where the worker of local rank 0 writes what it has imported
	host    *Host
	cmd     *exec.Cmd
	conn    *net.UnixConn
	frames  chan []string // closed at the end of the template
	idle    bool          // at the lowest priority until it is ready
	isReady bool
	modules int
	took    time.Duration // until it was ready
	step    string        // the module whose import began last
	killed  atomic.Bool   // it did not do what it should, or is out of date
	ended   chan struct{}
	unread  chan struct{} // closed when nobody reads frames any more
	once    sync.Once
}

// startTemplate starts the process, which imports names then: see load.
func startTemplate(h *Host, p *program, names []string, idle bool) (*template, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "template"), os.NewFile(uintptr(fds[1]), "template")
	defer ours.Close()
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	t := &template{
		program: p, names: names, learn: h.memory.dir, host: h, conn: conn.(*net.UnixConn), idle: idle && canBeIdle(),
		frames: make(chan []string, 64), ended: make(chan struct{}), unread: make(chan struct{}),
	}
	var files [3]*os.File // its code, stdout, stderr
	for i, text := range [][]byte{source, nil, nil} {
		if files[i], err = tempdir.InMemory("muster-warm", text); err != nil {
			conn.Close()
			return nil, err
		}
		defer files[i].Close()
	}
	args := append([]string{p.name}, p.flags...)
	t.cmd = &exec.Cmd{
		Path: p.python, Args: append(args, "-c", command), Env: p.env,
		Stdout: files[1], Stderr: files[2], ExtraFiles: []*os.File{files[0], theirs},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}
	begun := make(chan error)
	go func() { // Close does not wait for it: see killTime
		runtime.LockOSThread() // and never unlocked: its end is what Pdeathsig looks at, and it is bound
		if err := numa.Bind(0, p.cpus); err != nil {
			begun <- err
			return
		}
		if err := children.Start(t.cmd); err != nil {
			begun <- err
			return
		}
		begun <- nil
		_ = children.Wait(t.cmd)
		close(t.ended)
	}()
	if err := <-begun; err != nil {
		conn.Close()
		return nil, fmt.Errorf("start a template: %w", err)
	}
	if t.idle {
		setIdle(t.cmd.Process.Pid, true)
	}
	h.work.Go(t.read)
	fields := []string{"import", strings.Join(p.varying, ","), strings.Join(h.memory.read(setsFile), ","),
		strings.Join(h.memory.read(ownFile), ","), strconv.Itoa(os.Getpid()), strconv.Itoa(len(p.env))}
	fields = append(fields, p.env...)
	_ = t.send(nil, append(fields, names...)...) // a template that is gone says so to load
	return t, nil
}

// read takes what the template and its workers say.
func (t *template) read() {
	defer close(t.frames)
	for {
		var size [4]byte
		if _, err := io.ReadFull(t.conn, size[:]); err != nil {
			return
		}
		n := binary.LittleEndian.Uint32(size[:])
		if n > maxFrame {
			return
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(t.conn, body); err != nil {
			return
		}
		frame := strings.Split(string(body), "\x00")
		if frame[0] == "cold" && len(frame) == 3 { // from a worker, at any time: it answers nothing that fork waits for
			t.host.log.Warn("no warm start: workers are started cold", "pid", frame[1], "reason", frame[2])
			t.host.forked.Add(-1)
			t.host.execed.Add(1)
			continue
		}
		select {
		case t.frames <- frame:
		case <-t.unread:
			return
		}
	}
}

// send sends one frame, with files.
func (t *template) send(files []*os.File, fields ...string) error {
	var body bytes.Buffer
	for i, f := range fields {
		if i > 0 {
			body.WriteByte(0)
		}
		body.WriteString(f)
	}
	var rights []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		rights = unix.UnixRights(fds...)
	}
	_ = t.conn.SetWriteDeadline(time.Now().Add(answerTime))
	length := binary.LittleEndian.AppendUint32(nil, uint32(body.Len()))
	if _, _, err := t.conn.WriteMsgUnix(length, rights, nil); err != nil {
		return err
	}
	_, err := t.conn.Write(body.Bytes())
	return err
}

// next waits for a frame.
func (t *template) next(ctx context.Context, timeout time.Duration) ([]string, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case frame, ok := <-t.frames:
		if !ok {
			return nil, errGone
		}
		return frame, nil
	case <-timer.C:
		return nil, fmt.Errorf("%w for %v", errSilent, timeout)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// load waits until the template has imported its modules, each of which, and each that they import
// in turn, may take as long as limit. It returns those that it must not have, with the reasons, and
// calls fails for those of which another time may be different. Without an error it is ready, or has ended.
func (t *template) load(ctx context.Context, limit time.Duration, fails func(module, why string)) (
	left map[string]string, err error,
) {
	left = map[string]string{}
	for {
		frame, err := t.next(ctx, limit/6)
		if errors.Is(err, errSilent) {
			if t.step != "" && !t.idle { // who has the lowest priority may not have had its turn
				t.host.log.Warn("the template of warm starts takes long to import a module", "module", t.step,
					"so_far", (limit / 6).Round(time.Millisecond), "limit", limit)
			}
			frame, err = t.next(ctx, limit-limit/6)
		}
		switch {
		case err == errGone:
			return left, nil
		case err != nil:
			if ctx.Err() == nil && t.step != "" {
				if !t.idle {
					fails(t.step, "takes too long to import")
				}
				err = fmt.Errorf("%w, at the import of %s", err, t.step)
			}
			return left, err
		}
		switch {
		case frame[0] == "step" && len(frame) == 2:
			t.step = frame[1]
		case frame[0] == "left" && len(frame) == 3:
			left[frame[1]] = frame[2]
		case frame[0] == "failed" && len(frame) == 3:
			fails(frame[1], frame[2])
		case frame[0] == "ready" && len(frame) == 3:
			t.modules, _ = strconv.Atoi(frame[2])
			if t.idle {
				setIdle(t.cmd.Process.Pid, false)
			}
			t.isReady = true
			return left, nil
		}
	}
}

// fork is process.Config.Fork. With look the template looks for files that have changed.
func (t *template) fork(img process.Image, adopt func(int) error, look bool) error {
	if t.killed.Load() {
		return errGone
	}
	learn, looks := "", ""
	if img.LocalRank == 0 {
		learn = t.learn
	}
	if look {
		looks = "look"
	}
	fields := append([]string{"fork", img.Path, learn, t.program.script, looks, strconv.Itoa(len(img.Args))}, img.Args...)
	if err := t.send(img.Files, append(fields, img.Env...)...); err != nil {
		return t.lost(err)
	}
	answer, err := t.next(context.Background(), answerTime)
	if err != nil {
		return t.lost(err)
	}
	switch {
	case answer[0] == "error" && len(answer) == 2:
		return errors.New(answer[1])
	case answer[0] == "stale" && len(answer) == 2:
		return t.lost(errors.New(answer[1])) // so that there will be another
	}
	pid, err := strconv.Atoi(answer[len(answer)-1])
	if err != nil || answer[0] != "pid" || pid <= 1 {
		return t.lost(fmt.Errorf("the template answered %q", answer))
	}
	if err := adopt(pid); err != nil {
		_ = t.send(nil, "no")
		return err
	}
	if err := t.send(nil, "go"); err != nil {
		return t.lost(err)
	}
	if answer, err = t.next(context.Background(), answerTime); err == nil && answer[0] != "gone" {
		err = fmt.Errorf("the template answered %q", answer)
	}
	if err != nil {
		return t.lost(err)
	}
	return nil
}

// lost ends a template that does not do what it should, or is out of date.
func (t *template) lost(err error) error {
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		err = errGone
	}
	t.killed.Store(true)
	t.kill()
	return err
}

// kill ends its process, which at the lowest priority might not get as far on a busy machine, and what
// runs beside it: a wrapper of Python asks others. Its workers lead sessions of their own.
func (t *template) kill() {
	if t.isAlive() {
		_ = setIdle(t.cmd.Process.Pid, false)
	}
	if t.cmd.Process.Kill() == nil { // else it was waited for: its number may be another group's by now
		_ = syscall.Kill(-t.cmd.Process.Pid, syscall.SIGKILL)
	}
}

// isFit reports whether it can fork workers.
func (t *template) isFit() bool {
	return t != nil && t.isAlive() && !t.killed.Load()
}

// gone is closed at the template's end; nil without a template.
func (t *template) gone() <-chan struct{} {
	if t == nil {
		return nil
	}
	return t.ended
}

func (t *template) isAlive() bool {
	select {
	case <-t.ended:
		return false
	default:
		return true
	}
}

// await waits until the template has ended, for killTime at most.
func (t *template) await() {
	timer := time.NewTimer(killTime)
	defer timer.Stop()
	select {
	case <-t.ended:
	case <-timer.C:
	}
}

// lastStep says how a template ended that has closed its socket, and at which import.
func (t *template) lastStep() (state, step string) {
	t.await()
	if t.isAlive() {
		return "it does not end", t.step
	}
	return t.cmd.ProcessState.String(), t.step
}

// close ends the template. Its workers stay.
func (t *template) close() {
	if t == nil {
		return
	}
	t.once.Do(func() {
		close(t.unread)
		t.kill()
		t.await()
		t.conn.Close()
	})
}

// canBeIdle reports whether a thread at the lowest priority may leave it again. A thread that
// has to end then tries.
var canBeIdle = sync.OnceValue(func() bool {
	can := make(chan bool)
	go func() {
		runtime.LockOSThread()
		can <- setIdle(0, true) == nil && setIdle(0, false) == nil
	}()
	return <-can
})

// setIdle gives a process the lowest priority, or takes it away again. The nice value stays, as of a job that was
// started by nice: its workers inherit the template's.
func setIdle(pid int, idle bool) error {
	prio, err := unix.Getpriority(unix.PRIO_PROCESS, pid) // 20 less the nice value
	if err != nil {
		return err
	}
	attr := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: int32(20 - prio)}
	if idle {
		attr.Policy = unix.SCHED_IDLE
	}
	return unix.SchedSetAttr(pid, attr, 0)
}
