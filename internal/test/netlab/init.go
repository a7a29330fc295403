//go:build linux

package netlab

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/cgroup"
	"github.com/muster-run/muster/internal/host/procfs"
)

// An initProcess is the first process of a host that is up, and holds its PID, mount
// and UTS namespaces. It ignores SIGCHLD, by which the kernel reaps the host's
// orphans, and reads from a pipe that nothing is ever written to.
type initProcess struct {
	cmd   *exec.Cmd
	group *cgroup.Dir // of what runs in the host, but the init; nil where there are none
	pidfd int
	pidns string   // "pid:[4026532000]"
	life  *os.File // the pipe's other end; closing it ends the host
	ended chan struct{}
}

// initScript makes /proc that of the PID namespace, which only a process inside can
// do, says by the end of its output that it is there, and becomes the pipe's reader.
const initScript = `mount -t proc proc /proc && trap '' CHLD && exec cat >/dev/null 2>&1`

// startInit starts a host's init.
func (h *Host) startInit() (*initProcess, error) {
	in := &initProcess{ended: make(chan struct{})}
	stdin, life, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	in.life = life
	said, out, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, life.Close())
	}
	defer said.Close()
	in.cmd = exec.Command("/bin/sh", "-c", initScript)
	in.cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	in.cmd.Dir = "/"
	in.cmd.Stdin, in.cmd.Stdout, in.cmd.Stderr = stdin, out, out
	in.cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, PidFD: &in.pidfd}
	err = onThread(func() error {
		if err := errors.Join(enter(h.net), newSystem(h.Name, h.lab.etc)); err != nil {
			return err
		}
		return in.cmd.Start()
	})
	out.Close()
	if err != nil {
		return nil, errors.Join(err, life.Close())
	}
	go func() {
		defer close(in.ended)
		in.cmd.Wait()
	}()
	complaint, err := io.ReadAll(said)
	if err == nil && len(complaint) > 0 {
		err = fmt.Errorf("init: %s", complaint)
	}
	if err == nil {
		in.pidns, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", in.cmd.Process.Pid))
	}
	if err != nil {
		in.kill()
		return nil, errors.Join(err, in.close(patience))
	}
	if l := h.lab; l.group != nil {
		in.group, _ = cgroup.Make(l.group.Path(), fmt.Sprintf("%s.%d", h.Name, len(h.inits)))
	}
	return in, nil
}

// newSystem gives the calling thread mount and UTS namespaces, and its future child
// a PID namespace. The files of the directory etc are laid over those of /etc that
// the machine has.
func newSystem(name, etc string) error {
	flags := unix.CLONE_FS | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWPID
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("new mount, UTS and PID namespaces: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, file := range []string{"hosts", "resolv.conf"} {
		err := unix.Mount(filepath.Join(etc, file), "/etc/"+file, "", unix.MS_BIND, "")
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("mount over /etc/%s: %w", file, err)
		}
	}
	// No agent of another host is to be found here.
	sockets := fmt.Sprintf("/tmp/muster-%d", os.Geteuid())
	if err := os.Mkdir(sockets, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := unix.Mount("tmpfs", sockets, "tmpfs", 0, "mode=700"); err != nil {
		return fmt.Errorf("mount over %s: %w", sockets, err)
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("set host name %s: %w", name, err)
	}
	return nil
}

// enterAll moves the calling thread into the namespaces, and its future children
// into the PID namespace.
func (in *initProcess) enterAll() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	return unix.Setns(in.pidfd, unix.CLONE_NEWNET|unix.CLONE_NEWNS|unix.CLONE_NEWUTS|unix.CLONE_NEWPID)
}

// join makes a command start in the host's cgroup, unless it says in which.
func (in *initProcess) join(cmd *exec.Cmd) {
	var attr unix.SysProcAttr
	if cmd.SysProcAttr != nil {
		attr = *cmd.SysProcAttr
	}
	if in.group == nil || attr.UseCgroupFD {
		return
	}
	attr.UseCgroupFD, attr.CgroupFD = true, in.group.FD()
	cmd.SysProcAttr = &attr
}

// kill ends everything in the namespace. The kernel does so; await waits for it.
func (in *initProcess) kill() {
	unix.PidfdSendSignal(in.pidfd, unix.SIGKILL, nil, 0)
}

// processes lists the living processes of the namespace but the init, by their IDs
// in the test's PID namespace.
func (in *initProcess) processes() []int {
	return slices.DeleteFunc(in.all(), func(pid int) bool {
		ended, err := awaitEnd(pid, 0)
		return ended || err != nil
	})
}

// all lists the processes of the namespace but the init, also those that have ended
// and were not waited for.
func (in *initProcess) all() []int {
	var pids []int
	dirs, _ := os.ReadDir("/proc") // fails in no way that matters: then no process is found
	for _, dir := range dirs {
		pid, err := strconv.Atoi(dir.Name())
		if err != nil || pid == in.cmd.Process.Pid {
			continue
		}
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err == nil && ns == in.pidns {
			pids = append(pids, pid)
		}
	}
	return pids
}

// await waits until every process but the init has ended. The init itself stays
// until the test process has waited for those that are its children.
func (in *initProcess) await(limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for {
		// A process may have made others before it was killed; look again until
		// there is none.
		left := in.processes()
		if len(left) == 0 {
			return nil
		}
		for _, pid := range left {
			ended, err := awaitEnd(pid, time.Until(deadline))
			if err != nil {
				return err
			}
			if !ended {
				return fmt.Errorf("process %d still lives %v after it was killed: %s", pid, limit, procfs.WaitChannel(pid))
			}
		}
	}
}

// close waits for the end of a killed init and frees what held it.
func (in *initProcess) close(limit time.Duration) error {
	in.life.Close()
	if in.group != nil {
		in.group.Close()
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-in.ended:
		return unix.Close(in.pidfd)
	case <-timer.C:
	}
	var left []string
	for _, pid := range in.all() {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		left = append(left, fmt.Sprintf("%d (%s)", pid, strings.TrimSpace(string(name))))
	}
	return fmt.Errorf("cannot end: these processes live, or ended and the test did not Wait for them: %v", left)
}

// awaitEnd waits until a process has ended, reaped or not, at most limit.
func awaitEnd(pid int, limit time.Duration) (bool, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return true, nil // EINVAL: a process whose leader was reaped meanwhile
	}
	if err != nil {
		return false, fmt.Errorf("pidfd of %d: %w", pid, err)
	}
	defer unix.Close(fd)
	deadline := time.Now().Add(limit)
	for {
		left := max(time.Until(deadline).Milliseconds(), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left))
		if !errors.Is(err, unix.EINTR) {
			return n > 0, err
		}
	}
}
