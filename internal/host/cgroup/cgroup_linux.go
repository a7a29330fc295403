package cgroup

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/procfs"
)

// Own returns the cgroups that this process is in.
func Own() (Paths, error) {
	mountinfo, err := procfs.ReadFile("/proc/self/mountinfo")
	cgroups, err2 := procfs.ReadFile("/proc/self/cgroup")
	return ParsePaths(mountinfo, cgroups), cmp.Or(err, err2)
}

// A Dir is a cgroup of version 2, held open. Its methods may not be called
// concurrently with Remove.
type Dir struct {
	path string
	fd   int
}

// Make makes the cgroup parent/name, which must not exist.
func Make(parent, name string) (*Dir, error) {
	p := path.Join(parent, name)
	if err := os.Mkdir(p, 0o755); err != nil {
		return nil, err
	}
	d, err := Open(p)
	if err != nil {
		_ = syscall.Rmdir(p)
		return nil, err
	}
	return d, nil
}

// MakeLocked makes a cgroup below parent that RemoveStale, called with this prefix, leaves
// alone for as long as it is open: also by processes that see this one under another pid or
// not at all.
func MakeLocked(parent, prefix string) (d *Dir, err error) {
	for range 10 {
		if d, err = Make(parent, fmt.Sprintf("%s%d-%06x", prefix, os.Getpid(), rand.Uint32N(1<<24))); err == nil {
			if err = d.lock(); err == nil {
				if _, err = os.Lstat(d.path); err == nil {
					return d, nil
				}
			}
			_ = d.Remove() // another process has swept it before it was locked, or is about to
		}
	}
	return nil, err
}

// Open opens a cgroup that exists.
func Open(p string) (*Dir, error) {
	fd, err := open(unix.AT_FDCWD, p, syscall.O_RDONLY|syscall.O_DIRECTORY)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: p, Err: err}
	}
	return &Dir{path: p, fd: fd}, nil
}

// Path returns the cgroup's directory.
func (d *Dir) Path() string { return d.path }

// FD returns the open directory, which stays d's. A process can be cloned into
// it.
func (d *Dir) FD() int { return d.fd }

func (d *Dir) lock() error {
	if err := syscall.Flock(d.fd, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("lock %s: %w", d.path, err)
	}
	return nil
}

// Populated reports whether any process lives in the cgroup or below it.
func (d *Dir) Populated() (bool, error) {
	text, err := d.read("cgroup.events")
	if err != nil {
		return false, err
	}
	return !bytes.Contains(text, []byte("populated 0")), nil
}

// PIDs lists the processes in the cgroup and below it. Zombies may be among them.
func (d *Dir) PIDs() ([]int, error) {
	text, err := d.read("cgroup.procs")
	if err != nil {
		return nil, err
	}
	pids := procfs.ParseChildren(text) // without 0, a process that this one's pid namespace does not show
	for _, sub := range subdirs(d.path) {
		if below, err := Open(sub); err == nil {
			more, _ := below.PIDs()
			below.Close()
			pids = append(pids, more...)
		}
	}
	return pids, nil
}

// Kill sends SIGKILL to every process in the cgroup and below it, all at once.
// Linux 5.14 and later can do that.
func (d *Dir) Kill() error { return d.write("cgroup.kill", "1") }

// Add moves a process into the cgroup.
func (d *Dir) Add(pid int) error { return d.write("cgroup.procs", strconv.Itoa(pid)) }

func (d *Dir) write(name, text string) error {
	fd, err := open(d.fd, name, syscall.O_WRONLY)
	if err != nil {
		return &os.PathError{Op: "open", Path: d.path + "/" + name, Err: err}
	}
	defer syscall.Close(fd)
	if _, err := syscall.Write(fd, []byte(text)); err != nil {
		return &os.PathError{Op: "write", Path: d.path + "/" + name, Err: err}
	}
	return nil
}

// Close closes the directory and leaves the cgroup.
func (d *Dir) Close() {
	if d.fd >= 0 {
		syscall.Close(d.fd)
		d.fd = -1
	}
}

// Remove closes and removes the cgroup and those that processes made below it.
// No process may live there any more.
func (d *Dir) Remove() error {
	d.Close()
	return remove(d.path)
}

func remove(p string) error {
	err := syscall.Rmdir(p)
	if err == nil || errors.Is(err, syscall.ENOENT) {
		return nil
	}
	for _, sub := range subdirs(p) {
		_ = remove(sub)
	}
	if err := syscall.Rmdir(p); err != nil && !errors.Is(err, syscall.ENOENT) {
		return &os.PathError{Op: "rmdir", Path: p, Err: err}
	}
	return nil
}

// RemoveStale removes the cgroups below parent that are called prefix, a pid, a dash and
// six hexadecimal digits, and that nobody holds locked: those of programs that were
// killed. One that processes live in is given to left, if that is not nil, and stays at
// least until the next time.
func RemoveStale(parent, prefix string, left func(*Dir)) {
	for _, sub := range subdirs(parent) {
		name, ours := strings.CutPrefix(path.Base(sub), prefix)
		pid, random, _ := strings.Cut(name, "-")
		if !ours || strings.Trim(pid, "0123456789") != "" || len(random) != 6 ||
			strings.Trim(random, "0123456789abcdef") != "" {
			continue // somebody else's
		}
		d, err := Open(sub)
		if err != nil {
			continue
		}
		if d.lock() == nil {
			if populated, err := d.Populated(); err == nil && populated {
				if left != nil {
					left(d)
				}
			} else if err == nil {
				_ = remove(sub)
			}
		}
		d.Close()
	}
}

func subdirs(p string) []string {
	entries, err := os.ReadDir(p)
	if err != nil {
		return nil
	}
	var dirs []string
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, path.Join(p, e.Name()))
		}
	}
	return dirs
}

// OOMFiles returns the files that count the processes which the kernel killed for
// lack of memory in the cgroup dir, or the nearest above it that counts, and in
// the version 1 memory cgroup.
func (p Paths) OOMFiles(dir string) []string {
	var files []string
	for dir != "" && strings.HasPrefix(dir, p.UnifiedRoot) {
		if file := dir + "/memory.events"; readable(file) {
			files = append(files, file)
			break
		}
		if dir == p.UnifiedRoot || dir == "/" {
			break
		}
		dir = path.Dir(dir)
	}
	if file := p.MemoryV1 + "/memory.oom_control"; p.MemoryV1 != "" && readable(file) {
		files = append(files, file)
	}
	return files
}

func readable(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// OOMKills reads a file of OOMFiles. Version 1 counts only what happened in the
// cgroup itself, version 2 also what happened below it.
func OOMKills(file string) (int64, error) {
	text, err := procfs.ReadFile(file)
	if err != nil {
		return 0, err
	}
	if count := procfs.Field(text, "oom_kill "); count != "" {
		return strconv.ParseInt(count, 10, 64)
	}
	return 0, fmt.Errorf("%s has no oom_kill", file)
}

func (d *Dir) read(name string) ([]byte, error) {
	text, err := procfs.ReadAt(d.fd, name)
	if e, ok := errors.AsType[*os.PathError](err); ok {
		e.Path = d.path + "/" + name
	}
	return text, err
}

// open opens a file of the cgroup file system, relative to a directory. These are read in one go, so
// they need no poller.
func open(dir int, name string, flags int) (int, error) {
	for {
		fd, err := syscall.Openat(dir, name, flags|syscall.O_CLOEXEC, 0)
		if err != syscall.EINTR {
			return fd, err
		}
	}
}
