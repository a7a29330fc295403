package failure

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"syscall"
)

// explainStart says in one line why program could not be started, given the
// error of the attempt, and what to do about it. It looks at the file to tell
// apart what the kernel reports with the same number: a missing file and a
// missing interpreter, for one. The hint may be empty.
func explainStart(program string, err error) (cause, hint string) {
	name := oneLine(program, maxName)
	if name == "" {
		name = "the worker"
	}
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return fmt.Sprintf("cannot start %s: %s", name, oneLine(err.Error(), maxCause)), ""
	}
	reason := errno.Error()
	inPath := !strings.Contains(program, "/") // so where it is, is not known here
	info, statErr := os.FileInfo(nil), error(errno)
	if !inPath {
		info, statErr = os.Stat(program)
	}
	switch {
	case statErr == nil && info.IsDir():
		reason, hint = "it is a directory", "name the file to run"
	case errno == syscall.ENOENT && statErr == nil:
		reason, hint = missingInterpreter(program)
	case errno == syscall.ENOENT && inPath:
		reason, hint = "no such program in PATH", "name it with its path, or check PATH"
	case errno == syscall.ENOENT:
		reason, hint = "no such file", "check the path; a relative one starts at the working directory of muster"
	case errno == syscall.EACCES && statErr == nil && info.Mode()&0o111 == 0:
		reason = "it is not executable"
		hint = "chmod +x it, or without --no-python it runs under the Python interpreter"
	case errno == syscall.EACCES && inPath:
		reason, hint = "found in PATH, but not executable", "chmod +x it"
	case errno == syscall.EACCES:
		reason, hint = "permission denied", "check the rights of the directories above it, and that the file system is "+
			"not mounted noexec"
	case errno == syscall.ENOEXEC:
		reason, hint = notExecutable(program)
	case errno == syscall.E2BIG:
		reason, hint = "its arguments and environment are too long", "one string may have 128 KiB, all together a "+
			"quarter of the stack limit (ulimit -s)"
	case errno == syscall.EAGAIN:
		reason, hint = "no more processes or threads", "raise ulimit -u, or the cgroup's pids.max"
	case errno == syscall.ENOMEM:
		reason, hint = "out of memory", ""
	case errno == syscall.EMFILE || errno == syscall.ENFILE:
		reason, hint = "too many open files", "raise ulimit -n"
	case errno == syscall.ETXTBSY:
		reason, hint = "the file is being written to", "wait for the copy or build to end"
	}
	return fmt.Sprintf("cannot start %s: %s", name, reason), hint
}

// missingInterpreter explains ENOENT for a file that is there.
func missingInterpreter(path string) (reason, hint string) {
	head := headOf(path)
	switch line, script := strings.CutPrefix(head, "#!"); {
	case script:
		line, _, _ = strings.Cut(line, "\n")
		fields := strings.Fields(strings.TrimSuffix(line, "\r"))
		if len(fields) == 0 {
			return "its #! line names no interpreter", "write one such as #!/usr/bin/env python3"
		}
		interpreter := oneLine(fields[0], maxName)
		if strings.HasSuffix(line, "\r") {
			return fmt.Sprintf("it has Windows line ends, so its interpreter %s\\r does not exist", interpreter),
				"convert it, for example with dos2unix"
		}
		return fmt.Sprintf("its interpreter %s does not exist", interpreter), "change the file's first line, or install " +
			"the interpreter"
	case strings.HasPrefix(head, "\x7fELF"):
		return "its dynamic loader does not exist", "it was built for another C library (glibc, musl) or another system"
	}
	return "something that it needs does not exist", ""
}

// notExecutable explains ENOEXEC.
func notExecutable(path string) (reason, hint string) {
	head := headOf(path)
	machine := elfMachine(head)
	switch {
	case head == "":
		return "exec format error: the file is empty or unreadable", ""
	case machine != "" && machine != runtime.GOARCH:
		return fmt.Sprintf("exec format error: it is built for %s, this machine is %s", machine, runtime.GOARCH), ""
	case strings.HasPrefix(head, "\x7fELF"), strings.HasPrefix(head, "#!"):
		return "exec format error", ""
	case !strings.ContainsRune(head, 0):
		return "exec format error: it has no #! line", "begin the file with a line such as #!/bin/sh, or name the " +
			"interpreter as the program to run"
	}
	return "exec format error: it is not a program for this system", ""
}

// headOf returns the first bytes of a regular file, "" where it cannot.
func headOf(path string) string {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&fs.ModeType != 0 {
		return ""
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer file.Close()
	head := make([]byte, 256)
	n, _ := io.ReadFull(file, head)
	return string(head[:n])
}

// elfMachine returns the architecture of an ELF file's head under Go's name;
// "" for other files and machines.
func elfMachine(head string) string {
	if len(head) < 20 || head[:4] != "\x7fELF" {
		return ""
	}
	var order binary.ByteOrder = binary.LittleEndian
	if head[5] == 2 {
		order = binary.BigEndian
	}
	return map[uint16]string{
		3: "386", 21: "ppc64", 22: "s390x", 40: "arm", 62: "amd64", 183: "arm64", 243: "riscv64", 258: "loong64",
	}[order.Uint16([]byte(head[18:20]))]
}
