// Package procfs reads what muster needs to know from Linux's /proc: parents, sessions,
// start times, states, environments, CPU time and memory, sockets. It caches nothing but
// the readings of a Meter. A process may end between two reads; callers must expect that.
//
// Files are read with bare system calls: os.ReadFile first tries to register every
// file with the network poller, which takes longer than the reading.
package procfs

import (
	"bytes"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxFile bounds what is read of one file.
const maxFile = 4 << 20

// ReadFile returns the content of a file that the kernel makes up. Of a file
// longer than 4 MiB it returns the beginning.
func ReadFile(path string) ([]byte, error) { return ReadAt(unix.AT_FDCWD, path) }

// ReadAt is ReadFile of a path below an open directory.
func ReadAt(dir int, path string) ([]byte, error) {
	fd, err := open(dir, path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 0, 1024)
	for len(buf) < maxFile {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, 3*len(buf))
		}
		n, err := unix.Read(fd, buf[len(buf):cap(buf)])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			break
		}
		buf = buf[:len(buf)+n]
	}
	return buf, nil
}

func open(dir int, path string) (int, error) {
	for {
		fd, err := unix.Openat(dir, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return -1, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		return fd, nil
	}
}

// PIDs lists the processes that /proc shows, whosever it is.
func PIDs() (pids []int, err error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1) // without a look at each
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// Descends reports whether a process is below another one, at most 64 generations. A
// process whose parent has ended descends from nobody but the one that adopted it.
func Descends(pid, ancestor int) (bool, error) {
	for range 64 {
		s, err := Read(pid)
		switch {
		case err != nil:
			return false, err
		case s.Parent == ancestor: // which is 1 in a container
			return true, nil
		case s.Parent <= 1:
			return false, nil
		}
		pid = s.Parent
	}
	return false, nil
}

// Ignores reports whether a process ignores a signal.
func Ignores(pid int, sig syscall.Signal) bool {
	text, _ := ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	mask, _ := strconv.ParseUint(Field(text, "SigIgn:"), 16, 64)
	return mask>>(sig-1)&1 == 1
}

// Command returns the beginning of a process's command line; "" if nobody tells it.
func Command(pid int) string {
	text, _ := ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return strings.TrimSpace(strings.ReplaceAll(strings.ToValidUTF8(string(text[:min(200, len(text))]), ""), "\x00", " "))
}

// PSS returns the memory of a process in bytes, of which what it shares counts in equal parts
// for all who share it.
func PSS(pid int) (int64, error) {
	text, err := ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	return Kilobytes(text, "Pss:"), err
}

// Field returns what follows a name at the beginning of a line; "" if there is none.
func Field(text []byte, name string) string {
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte(name)); ok {
			return string(bytes.TrimSpace(rest))
		}
	}
	return ""
}

// Kilobytes is Field for a line "Name:  12 kB", in bytes; 0 if there is none.
func Kilobytes(text []byte, name string) int64 {
	n, _ := strconv.ParseInt(strings.TrimSuffix(Field(text, name), " kB"), 10, 53)
	return n << 10
}
