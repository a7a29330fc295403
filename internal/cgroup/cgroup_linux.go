package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/procfs"
)

// A Dir is a cgroup that this program made.
type Dir struct {
	Path string
	// FD is the open directory, to start processes in.
	FD int
}

// own finds the directory of this process' cgroup in the version 2 hierarchy,
// wherever it is mounted.
var own = sync.OnceValues(func() (string, error) {
	mount, err := mountPoint()
	if err != nil {
		return "", err
	}
	text, err := procfs.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return filepath.Join(mount, path), nil
		}
	}
	return "", errors.New("this process is in no cgroup of version 2")
})

func mountPoint() (string, error) {
	text, err := procfs.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		before, after, ok := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if ok && strings.HasPrefix(after, "cgroup2 ") && len(fields) >= 5 {
			return unescape(fields[4]), nil
		}
	}
	return "", errors.New("no cgroup file system of version 2 is mounted")
}

// unescape undoes the octal escapes of mountinfo.
func unescape(path string) string {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] == '\\' && i+3 < len(path) {
			if n, err := strconv.ParseUint(path[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(path[i])
	}
	return b.String()
}

// Own returns the directory of this process' cgroup.
func Own() (string, error) { return own() }

// Make makes a cgroup below this process' own.
func Make(name string) (*Dir, error) {
	parent, err := own()
	if err != nil {
		return nil, err
	}
	return makeDir(filepath.Join(parent, name))
}

// Make makes a cgroup below d.
func (d *Dir) Make(name string) (*Dir, error) { return makeDir(filepath.Join(d.Path, name)) }

func makeDir(path string) (*Dir, error) {
	if err := unix.Mkdir(path, 0o755); err != nil && err != unix.EEXIST {
		return nil, &fs.PathError{Op: "mkdir", Path: path, Err: err}
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = unix.Rmdir(path)
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return &Dir{Path: path, FD: fd}, nil
}

// PIDs lists the processes in the cgroup and below it.
func (d *Dir) PIDs() ([]int, error) {
	text, err := procfs.ReadFile(d.Path + "/cgroup.procs")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, field := range bytes.Fields(text) {
		pid, err := strconv.Atoi(string(field))
		if err != nil {
			return nil, fmt.Errorf("%s/cgroup.procs: %w", d.Path, err)
		}
		if pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Kill sends SIGKILL to every process in the cgroup at once.
func (d *Dir) Kill() error { return Kill(d.Path) }

// Kill sends SIGKILL to every process in the cgroup at path.
func Kill(path string) error {
	return procfs.WriteFile(path+"/cgroup.kill", "1")
}

// Remove removes the cgroup, which must hold no process any more.
func (d *Dir) Remove() error {
	_ = unix.Close(d.FD)
	if err := unix.Rmdir(d.Path); err != nil {
		return &fs.PathError{Op: "rmdir", Path: d.Path, Err: err}
	}
	return nil
}

// OwnV1 returns the directory of this process' cgroup in the version 1 hierarchy
// of a controller.
func OwnV1(controller string) (string, error) {
	cgroups, err := procfs.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	mounts, err := procfs.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(cgroups)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 || !contains(fields[1], controller) {
			continue
		}
		for mount := range strings.Lines(string(mounts)) {
			before, after, ok := strings.Cut(strings.TrimSuffix(mount, "\n"), " - ")
			head, tail := strings.Fields(before), strings.Fields(after)
			if !ok || len(head) < 5 || len(tail) < 3 || tail[0] != "cgroup" || !contains(tail[2], controller) {
				continue
			}
			// A container may see only its part of the hierarchy: head[3].
			path := strings.TrimPrefix(fields[2], strings.TrimSuffix(unescape(head[3]), "/"))
			return filepath.Join(unescape(head[4]), path), nil
		}
	}
	return "", fmt.Errorf("no cgroup of version 1 with the %s controller", controller)
}

func contains(list, word string) bool {
	for item := range strings.SplitSeq(list, ",") {
		if item == word {
			return true
		}
	}
	return false
}
