package failure_test

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/failure"
)

func TestSignal(t *testing.T) {
	for sig, want := range map[failure.Signal]string{
		-1: "", 0: "", 1: "SIGHUP", 6: "SIGABRT", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM", 31: "SIGSYS",
		33: "", 34: "SIGRTMIN", 35: "SIGRTMIN+1", 40: "SIGRTMIN+6", 63: "SIGRTMIN+29", 64: "SIGRTMAX", 65: "",
	} {
		if runtime.GOOS != "linux" && sig > 15 {
			continue
		}
		if got := sig.String(); got != cmp.Or(want, fmt.Sprintf("signal %d", int(sig))) {
			t.Errorf("signal %d: got %q, want %q", sig, got, want)
		}
	}
}

func TestCause(t *testing.T) {
	type o = failure.Observation
	type e = failure.Evidence
	trace := func(last string) []byte {
		return []byte("Traceback (most recent call last):\n  File \"/env/torch/distributed/x.py\", line 3, in f\n    f(1)\n" + last + "\n")
	}
	record := func(message string) string {
		return write(t, `{"message": {"message": "`+message+`", "extraInfo": {"py_callstack": "T", "timestamp": "5"}}}`)
	}
	tests := []struct {
		name        string
		o           o
		cause, hint string // hint: a part of it, or "" for none at all
		kind        string
	}{
		{"code", o{ExitCode: 3}, "exit code 3", "", failure.Failed},
		{"code and stderr", o{ExitCode: 3, Evidence: e{StderrTail: []byte("a\n50%\r100% \x1b[31mfailed\x1b[0m\a\n\n")}}, "exit code 3; last line on stderr: 100% failed\ufffd", "", failure.Failed},
		{"code, both streams", o{ExitCode: 3, Evidence: e{Mixed: true, StderrTail: []byte("epoch 3\n")}}, "exit code 3; last line of output: epoch 3", "", failure.Failed},
		{"sys.exit(text)", o{ExitCode: 1, Evidence: e{StderrTail: []byte("no data in /x\n")}}, "exit code 1; last line on stderr: no data in /x", "", failure.Failed},
		{"code, after PyTorch's last warning", o{ExitCode: 3, Evidence: e{StderrTail: []byte("no data in /x\n\n[rank0]:[W1127 06:44:02.276507359 ProcessGroupNCCL.cpp:1575] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. (function operator())\n")}},
			"exit code 3; last line on stderr: no data in /x", "", failure.Failed},
		{"NCCL", o{ExitCode: 1, Evidence: e{StderrTail: trace("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9\n" +
			"ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 0 and rank 1 both on CUDA device 60")}},
			"torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60",
			"one per GPU", failure.Failed},
		{"NCCL, which says nothing", o{ExitCode: 1, Evidence: e{StderrTail: trace("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited, NCCL version 2.28.9\nncclRemoteError: x\nLast error:\n")}},
			"torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited, NCCL version 2.28.9", "another worker", failure.LostPeer},
		{"exception", o{ExitCode: 1, Evidence: e{StderrTail: trace("ValueError: boom\nmore")}}, "ValueError: boom", "", failure.Failed},
		{"exception whose first line is only its type", o{ExitCode: 1, ErrorFile: record(`ProcessRaisedException: \n\n-- Process 1 terminated`)}, "ProcessRaisedException: -- Process 1 terminated", "", failure.Failed},
		{"survived exception", o{ExitCode: 3, Evidence: e{StderrTail: trace("ValueError: boom")}}, "exit code 3; last traceback on stderr: ValueError: boom", "", failure.Failed},
		{"recorded", o{ExitCode: 1, ErrorFile: record(`ValueError: boom\nmore`)}, "ValueError: boom", "", failure.Failed},
		{"recorded, with control characters", o{ExitCode: 1, ErrorFile: record(`ValueError:\t\u001b[31mboom\u202e\u0000`)}, "ValueError: boom\ufffd\ufffd", "", failure.Failed},
		{"recorded, then crashed", o{ExitCode: -11, ErrorFile: record("ValueError: boom")}, "ValueError: boom; then killed by SIGSEGV (segmentation fault)", "", failure.Failed},
		{"long", o{ExitCode: 1, ErrorFile: record("ValueError: " + strings.Repeat("é", 5000))}, "ValueError: " + strings.Repeat("é", 388) + "...", "", failure.Failed},
		{"signal", o{ExitCode: -11, CoreDumped: true}, "killed by SIGSEGV (segmentation fault), core dumped", "", failure.Failed},
		{"a GPU", o{ExitCode: -6, GPU: "Xid 79 (it has fallen off the bus) of GPU 3"}, "killed by SIGABRT (the program aborted itself); Xid 79 (it has fallen off the bus) of GPU 3", "run muster doctor on that host", failure.Failed},
		{"a GPU of a worker that was stopped", o{ExitCode: -15, StoppedBy: 15, GPU: "Xid 79"}, "stopped with SIGTERM", "", failure.Stopped},
		{"real-time signal", o{ExitCode: -40}, "killed by SIGRTMIN+6", "", failure.Failed},
		{"signal without a name", o{ExitCode: -33}, "killed by signal 33", "", failure.Failed},
		{"SIGKILL", o{ExitCode: -9}, "killed by SIGKILL", "somebody else sent SIGKILL", failure.Failed},
		{"SIGKILL after a traceback that it survived", o{ExitCode: -9, Evidence: e{StderrTail: append(trace("ValueError: boom"), "retrying\n\n\ngoing on\n"...)}},
			"killed by SIGKILL", "somebody else sent SIGKILL", failure.Failed},
		{"SIGTERM from outside", o{ExitCode: -15}, "killed by SIGTERM", "muster did not send it", failure.Failed},
		{"SIGINT", o{ExitCode: -2, Evidence: e{StderrTail: trace("KeyboardInterrupt")}}, "killed by SIGINT; last traceback on stderr: KeyboardInterrupt", "muster did not send it", failure.Failed},
		{"SIGBUS", o{ExitCode: -7}, "killed by SIGBUS (bus error)", "/dev/shm", failure.Failed},
		{"crash with Python's stack", o{ExitCode: -11, Evidence: e{StderrTail: []byte("Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  File \"a.py\", line 3 in f\n")}},
			"killed by SIGSEGV (segmentation fault): Segmentation fault in f (a.py:3)", "", failure.Failed},
		{"abort", o{ExitCode: -6, Evidence: e{StderrTail: []byte("x: free(): invalid pointer\n")}}, "killed by SIGABRT (the program aborted itself): x: free(): invalid pointer", "", failure.Failed},
		{"C++", o{ExitCode: -6, Evidence: e{StderrTail: []byte("terminate called after throwing an instance of 'c10::Error'\n  what():  boom\n")}},
			"killed by SIGABRT (the program aborted itself): C++ exception c10::Error: boom", "", failure.Failed},
		{"abort after an exception", o{ExitCode: -6, Evidence: e{StderrTail: append(trace("ValueError: bad batch"), "terminate called without an active exception\n"...)}},
			"ValueError: bad batch; then killed by SIGABRT (the program aborted itself)", "", failure.Failed},
		{"abort long after an exception", o{ExitCode: -6, Evidence: e{StderrTail: append(trace("ValueError: survived"), "\n2026-11-21 step 7\nstep 8\nstep 9\nstep 10\nstep 11\nterminate called without an active exception\n"...)}},
			"killed by SIGABRT (the program aborted itself): terminate called without an active exception", "", failure.Failed},
		{"OOM", o{ExitCode: -9, OOM: "cgroup memory.events: oom_kill 0→1", Evidence: e{StderrTail: trace("ValueError: survived")}}, "killed by SIGKILL: out of memory (cgroup memory.events: oom_kill 0→1)", "", failure.Failed},
		{"OOM of a child", o{ExitCode: 1, OOM: "oom_kill 0→1", Evidence: e{StderrTail: trace("RuntimeError: DataLoader worker (pid 5) is killed by signal: Killed.")}},
			"RuntimeError: DataLoader worker (pid 5) is killed by signal: Killed.; out of memory (oom_kill 0→1)", "memory limit", failure.Failed},
		{"OOM of something else", o{ExitCode: 1, OOM: "oom_kill 0→1", Evidence: e{StderrTail: trace("ValueError: boom")}}, "ValueError: boom", "perhaps a child of this worker: oom_kill", failure.Failed},
		{"OOM, and nothing is said", o{ExitCode: 1, OOM: "oom_kill 0→1"}, "exit code 1; out of memory (oom_kill 0→1)", "", failure.Failed},
		{"unknown exit code", o{ExitCode: failure.UnknownExit, Evidence: e{StderrTail: []byte("step 3\n")}}, "unknown exit code; last line on stderr: step 3", "", failure.Failed},
		{"unknown exit code of an abort", o{ExitCode: failure.UnknownExit, Evidence: e{StderrTail: []byte("terminate called after throwing an instance of 'int'\n")}}, "C++ exception int", "", failure.Failed},
		{"timer", o{ExitCode: -9, TimerExpired: "scope step, 30 s"}, "missed a deadline: scope step, 30 s; killed by SIGKILL", "", failure.Failed},
		{"D state", o{ExitCode: -9, Abandoned: "nfs_wait_bit_killable"}, "did not die of SIGKILL: stuck in the kernel, uninterruptible sleep in nfs_wait_bit_killable", "storage", failure.Failed},
		{"a shell's SIGKILL", o{ExitCode: 137}, "exit code 137 (128+9: how a shell reports SIGKILL)", "somebody else sent SIGKILL", failure.Failed},
		{"a shell's OOM", o{ExitCode: 137, OOM: "oom_kill 0→1"}, "exit code 137 (128+9: how a shell reports SIGKILL); out of memory (oom_kill 0→1)", "", failure.Failed},
		{"129", o{ExitCode: 129}, "exit code 129 (128+1: how a shell reports SIGHUP)", "", failure.Failed},
		{"128", o{ExitCode: 128}, "exit code 128", "", failure.Failed},
		{"255", o{ExitCode: 255}, "exit code 255", "", failure.Failed},
		{"127", o{ExitCode: 127, Evidence: e{StderrTail: []byte("a.sh: line 2: nope: command not found\n")}}, "exit code 127; last line on stderr: a.sh: line 2: nope: command not found", "did not find a command", failure.Failed},
		{"126", o{ExitCode: 126}, "exit code 126", "could not execute", failure.Failed},
		{"missing script", o{ExitCode: 2, Evidence: e{StderrTail: []byte("/bin/python3: can't open file '/x/a.py': [Errno 2] No such file or directory\n")}},
			"exit code 2; last line on stderr: /bin/python3: can't open file '/x/a.py': [Errno 2] No such file or directory", "check the script's path", failure.Failed},
		{"arguments", o{ExitCode: 2, Evidence: e{StderrTail: []byte("usage: a.py [-h]\na.py: error: unrecognized arguments: --x\n")}},
			"exit code 2; last line on stderr: a.py: error: unrecognized arguments: --x", "does not take these arguments", failure.Failed},
		{"missing module", o{ExitCode: 1, Evidence: e{Entrypoint: "/bin/python3", StderrTail: trace("ModuleNotFoundError: No module named 'x'")}}, "ModuleNotFoundError: No module named 'x'", "install the module for /bin/python3", failure.Failed},
		{"missing module in a shell's child", o{ExitCode: 1, Evidence: e{Entrypoint: "/bin/sh", StderrTail: trace("ModuleNotFoundError: No module named 'x'")}}, "ModuleNotFoundError: No module named 'x'", "", failure.Failed},
		{"a directory", o{ExitCode: 1, Evidence: e{StderrTail: []byte("/bin/python3: can't find '__main__' module in '/x'\n")}}, "exit code 1; last line on stderr: /bin/python3: can't find '__main__' module in '/x'", "the script is a directory without __main__.py, or its name is empty", failure.Failed},
		{"python -m", o{ExitCode: 1, Evidence: e{StderrTail: []byte("/bin/python3: No module named x\n")}}, "exit code 1; last line on stderr: /bin/python3: No module named x", "install the module", failure.Failed},
		{"CUDA out of memory", o{ExitCode: 1, Evidence: e{StderrTail: trace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.")}}, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.", "GPU's memory is full", failure.Failed},
		{"gloo", o{ExitCode: 1, Evidence: e{StderrTail: trace("RuntimeError: [/p/gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:5")}}, "RuntimeError: [/p/gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:5", "another worker", failure.LostPeer},
		{"NCCL", o{ExitCode: -6, Evidence: e{StderrTail: []byte("terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG 0 Rank 1] NCCL watchdog thread terminated with exception: remote process exited or there was a network error\n")}},
			"killed by SIGABRT (the program aborted itself): C++ exception c10::DistBackendError: [PG 0 Rank 1] NCCL watchdog thread terminated with exception: remote process exited or there was a network error", "another worker", failure.LostPeer},
		{"store", o{ExitCode: 1, Evidence: e{StderrTail: trace("torch.distributed.DistNetworkError: failed to recv, got 0 bytes")}}, "torch.distributed.DistNetworkError: failed to recv, got 0 bytes", "another worker", failure.LostPeer},
		{"some other connection", o{ExitCode: 1, Evidence: e{StderrTail: []byte("Traceback (most recent call last):\n  File \"/env/http/client.py\", line 3, in f\nConnectionResetError: [Errno 104] Connection reset by peer\n")}},
			"ConnectionResetError: [Errno 104] Connection reset by peer", "", failure.Failed},
		{"port", o{ExitCode: 1, Evidence: e{StderrTail: trace("RuntimeError: The server socket has failed to listen: EADDRINUSE")}}, "RuntimeError: The server socket has failed to listen: EADDRINUSE", "another process listens", failure.Failed},
		{"disk", o{ExitCode: 1, Evidence: e{StderrTail: trace("OSError: [Errno 28] No space left on device")}}, "OSError: [Errno 28] No space left on device", "file system is full", failure.Failed},
		{"a function's error", o{PID: 7, ExitCode: 1, Evidence: e{Err: errors.New("no data:\nnone"), StderrTail: []byte("f: no data\n")}}, "no data: none", "", failure.Failed},
		{"a function's panic", o{PID: 7, ExitCode: 1, Evidence: e{Err: errors.New("panic: boom"), Stack: "goroutine 1 [running]:"}}, "panic: boom", "", failure.Failed},
		{"a function that a signal ended", o{PID: 7, ExitCode: -9, OOM: "oom_kill 0→1", Evidence: e{Err: errors.New("the worker ended without returning")}}, "killed by SIGKILL: out of memory (oom_kill 0→1)", "", failure.Failed},
		{"stopped", o{ExitCode: -15, StoppedBy: failure.Signal(syscall.SIGTERM), Evidence: e{StderrTail: trace("ValueError: of the past")}}, "stopped with SIGTERM", "", failure.Stopped},
		{"stopped with SIGKILL in the end", o{ExitCode: -9, StoppedBy: failure.Signal(syscall.SIGTERM)}, "stopped with SIGTERM; had to be killed after the grace period", "", failure.Stopped},
		{"stopped, its own exit code", o{ExitCode: 1, StoppedBy: failure.Signal(syscall.SIGTERM)}, "stopped with SIGTERM; exit code 1", "", failure.Stopped},
		{"stopped, recorded", o{ExitCode: 1, StoppedBy: failure.Signal(syscall.SIGTERM), ErrorFile: record("ValueError: boom")}, "ValueError: boom; stopped with SIGTERM; exit code 1", "", failure.Stopped},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.o.Ended = noon
			f := failure.New(tt.o)
			if f.Cause != tt.cause {
				t.Errorf("cause:\n%s, want\n%s", f.Cause, tt.cause)
			}
			if (f.Hint == "") != (tt.hint == "") || !strings.Contains(f.Hint, tt.hint) {
				t.Errorf("hint %q, want %q", f.Hint, tt.hint)
			}
			if f.Kind != tt.kind {
				t.Errorf("kind %s, want %s", f.Kind, tt.kind)
			}
			checkFailure(t, f)
		})
	}
}

// What the kernel says to real files.
func TestExplainStart(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	foreign := "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9) + "\x02\x00\x16\x00" // s390x, byte order apart
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		program     string
		cause, hint string
	}{
		{filepath.Join(dir, "missing"), "no such file", "check the path"},
		{dir, "it is a directory", "name the file"},
		{file("plain", "#!/bin/sh\n", 0o644), "it is not executable", "chmod +x"},
		{file("noline", "echo hello\n", 0o755), "exec format error: it has no #! line", "begin the file"},
		{file("empty", "", 0o755), "exec format error: the file is empty or unreadable", ""},
		{file("foreign", foreign, 0o755), "exec format error: it is built for s390x, this machine is " + runtime.GOARCH, ""},
		{file("data", "\x00\x01\x02", 0o755), "exec format error: it is not a program for this system", ""},
		{file("nointerp", "#!/no/such/python3 -u\nx\n", 0o755), "its interpreter /no/such/python3 does not exist", "first line"},
		{file("crlf", "#!/bin/sh\r\nx\r\n", 0o755), `it has Windows line ends, so its interpreter /bin/sh\r does not exist`, "dos2unix"},
		{filepath.Join(file("f", "", 0o644), "x"), "not a directory", ""},
	}
	for _, tt := range tests {
		err := syscall.Exec(tt.program, []string{tt.program}, nil) // which does not come back if it works
		if err == nil {
			t.Fatal("exec of", tt.program)
		}
		cause, hint := failure.ExplainStart(tt.program, &os.PathError{Op: "fork/exec", Path: tt.program, Err: err})
		want := "cannot start " + tt.program + ": " + tt.cause
		if cause != want || (hint == "") != (tt.hint == "") || !strings.Contains(hint, tt.hint) {
			t.Errorf("%s (%v): got %q, %q, want %q, %q", tt.program, err, cause, hint, want, tt.hint)
		}
	}
	for err, want := range map[error]string{
		syscall.EAGAIN:  "cannot start " + self + ": no more processes or threads",
		syscall.ENOMEM:  "cannot start " + self + ": out of memory",
		syscall.EMFILE:  "cannot start " + self + ": too many open files",
		syscall.E2BIG:   "cannot start " + self + ": its arguments and environment are too long",
		syscall.ETXTBSY: "cannot start " + self + ": the file is being written to",
		syscall.EACCES:  "cannot start " + self + ": permission denied",
		syscall.EPERM:   "cannot start " + self + ": operation not permitted",
	} {
		if got, _ := failure.ExplainStart(self, err); got != want {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
	if got, _ := failure.ExplainStart("nope", syscall.ENOENT); got != "cannot start nope: no such program in PATH" {
		t.Errorf("in PATH: got %q", got)
	}
	if got, _ := failure.ExplainStart("nope", syscall.EACCES); got != "cannot start nope: found in PATH, but not executable" {
		t.Errorf("in PATH: got %q", got)
	}
	if got, _ := failure.ExplainStart("", errors.New("no\nslots")); got != "cannot start the worker: no slots" {
		t.Errorf("other error: got %q", got)
	}
	f := failure.New(failure.Observation{ExitCode: 1, Evidence: failure.Evidence{Entrypoint: "nope", Err: syscall.ENOENT, StderrTail: []byte(simple)}})
	if f.Cause != "cannot start nope: no such program in PATH" || f.Traceback != "" || f.Hint == "" {
		t.Errorf("got %q, %q, %q", f.Cause, f.Hint, f.Traceback)
	}
	checkFailure(t, f)
}

// Where no room is left for the worker's output, that may be the reason, and is why
// nothing else is known.
func TestDiskFull(t *testing.T) {
	f := failure.New(failure.Observation{ExitCode: 1, Evidence: failure.Evidence{DiskFull: "/logs"}})
	if want := "exit code 1; no room is left in /logs, where its output goes"; f.Cause != want || !strings.Contains(f.Hint, "--log-dir") {
		t.Errorf("cause %q, hint %q", f.Cause, f.Hint)
	}
}

func TestClass(t *testing.T) {
	for _, tt := range []struct {
		o    failure.Observation
		kind string
		want failure.Cause
	}{
		{failure.Observation{ExitCode: 1}, failure.Failed, failure.CauseExitCode},
		{failure.Observation{ExitCode: -7}, failure.Failed, failure.CauseSignal},
		{failure.Observation{ExitCode: 1, Evidence: failure.Evidence{Err: errors.New("no")}}, failure.Failed, failure.CauseNotStarted},
		{failure.Observation{ExitCode: -9, OOM: "oom_kill 0→1"}, failure.Failed, failure.CauseOOM},
		{failure.Observation{ExitCode: -9, TimerExpired: "step"}, failure.Failed, failure.CauseTimer},
		{failure.Observation{ExitCode: -9, TimerExpired: failure.HangPrefix + "nothing"}, failure.Failed, failure.CauseHang},
		{failure.Observation{ExitCode: 1}, failure.LostPeer, failure.CauseLostPeer},
		{failure.Observation{ExitCode: -15, StoppedBy: 15}, failure.Stopped, failure.CauseStopped},
		{failure.Observation{ExitCode: -9, Abandoned: "nfs_wait"}, failure.Failed, failure.CauseUninterruptible},
	} {
		f := failure.New(tt.o)
		f.Kind = tt.kind
		if got := f.Class(); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.o, got, tt.want)
		}
	}
}

// An error that the worker has survived, such as that of a job within it, does not explain its end: the
// traceback at the end of stderr does.
func TestSurvivedErrorFile(t *testing.T) {
	last := "Traceback (most recent call last):\n  File \"/train.py\", line 3, in <module>\n    f(1)\n"
	for _, tt := range []struct {
		name, stderr string
		before       time.Duration
		want         string
	}{
		{"survived", last + "RuntimeError: boom\n", 3 * time.Second, "RuntimeError: boom"},
		{"just before the end", last + "RuntimeError: boom\n", 100 * time.Millisecond, "exit code 7"},
		{"no traceback", "evaluation failed\n", 3 * time.Second, "exit code 7"},
		{"a traceback of before", last + "RuntimeError: boom\nskipped\n", 3 * time.Second, "exit code 7"},
		{"the same error, and a slow end", last + "m.Error: exit code 7\n", 3 * time.Second, "exit code 7"},
	} {
		at := noon.Add(-tt.before)
		path := write(t, fmt.Sprintf(`{"message": {"message": "exit code 7", "extraInfo": {"py_callstack": "T", "timestamp": "%d"}}}`, at.Unix()))
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		f := failure.New(failure.Observation{ExitCode: 1, Started: noon.Add(-time.Minute), Ended: noon, ErrorFile: path, Evidence: failure.Evidence{StderrTail: []byte(tt.stderr)}})
		if f.Cause != tt.want {
			t.Errorf("%s: cause %q, want %q", tt.name, f.Cause, tt.want)
		}
		if survived := tt.want != "exit code 7"; survived != f.FailedAt.Equal(noon) || survived == f.Recorded {
			t.Errorf("%s: failed at %v, recorded: %v", tt.name, f.FailedAt, f.Recorded)
		}
	}
}

// Workers that meet at an address that each host has for itself have lost nobody; in a job of one
// host they may.
func TestLoopbackHint(t *testing.T) {
	const full = "RuntimeError: Gloo connectFullMesh failed with [/p/gloo/transport/tcp/pair.cc:144] no error, "
	for _, tt := range []struct {
		line, addr string
		hosts      int
	}{
		{full + "SO_ERROR: Connection refused, remote=[127.0.1.1]:38563", "127.0.1.1", 2},
		{full + "local=[fe80::42:acff:fe11:2]:5, remote=[10.0.0.2]:5", "fe80::42:acff:fe11:2", 2},
		{full + "local=[::1]:5", "::1", 2},
		{"torch.distributed.DistBackendError: NCCL error: Connect to 127.0.0.1<4242> failed : Connection refused", "127.0.0.1", 2},
		{"torch.distributed.DistBackendError: NCCL error: Connect to 127.0.0.1<4242> failed : Connection refused", "", 1},
		{"torch.distributed.DistBackendError: NCCL error: failed to recv, SocketImpl(fd=5, addr=[::1]:4, remote=[::1]:29500)", "", 2},
		{full + "remote=[10.127.0.1]:5", "", 2},
		{full + "local=[2001:db8::1]:5, remote=[fe8::1]:5", "", 2},
		{"RuntimeError: [/p/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.1.1]:5", "", 2},
	} {
		want := "another worker or its host probably failed first; look there"
		if tt.addr != "" {
			want = "a host's own name resolves to " + tt.addr + ", which other hosts cannot reach: correct /etc/hosts there, " +
				"or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to its network interface"
		}
		stderr := "Traceback (most recent call last):\n  File \"/env/torch/distributed/c10d.py\", line 3, in f\n" + tt.line + "\n"
		if f := failure.New(failure.Observation{ExitCode: 1, Evidence: failure.Evidence{Hosts: tt.hosts, StderrTail: []byte(stderr)}}); f.Hint != want {
			t.Errorf("%d hosts, %s: %s", tt.hosts, tt.line, f.Hint)
		}
	}
}

// A program that logs its error to stdout, and then crashes in clean-up, which says nothing.
func TestAbortAfterStdout(t *testing.T) {
	f := failure.New(failure.Observation{ExitCode: -6, Evidence: failure.Evidence{StderrTail: []byte("terminate called without an active exception\n"),
		StdoutTail: []byte("step 2\n2026-11-28 08:39:52,992 ERROR training stopped\n" + simple + "\n")}})
	if want := "ValueError: boom; then killed by SIGABRT (the program aborted itself)"; f.Cause != want {
		t.Errorf("cause %q, want %q", f.Cause, want)
	}
}

func TestAbortAfterPytest(t *testing.T) {
	f := failure.New(failure.Observation{ExitCode: -6, Evidence: failure.Evidence{StderrTail: []byte("terminate called without an active exception\n"),
		StdoutTail: []byte("FAILED test_dp.py::test_reduce - assert 5 == 6\n1 failed in 2.31s\n")}})
	if want := "FAILED test_dp.py::test_reduce - assert 5 == 6; then killed by SIGABRT (the program aborted itself)"; f.Cause != want {
		t.Errorf("cause %q, want %q", f.Cause, want)
	}
}

// A worker that cleans up before Python prints its error closes its connections first. It is known by what the others
// say if all of them have lost somebody, and only then.
func TestClosedWithoutWords(t *testing.T) {
	const lost = "Traceback (most recent call last):\n  File \"/train.py\", line 9, in <module>\n  File \"/env/torch/distributed/c10d.py\", line 3, in f\n" +
		"RuntimeError: [/p/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.3]:5\n"
	const slow = "Traceback (most recent call last):\n  File \"/env/torch/distributed/c10d.py\", line 3, in f\n" +
		"RuntimeError: [/p/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete\n"
	const cause = "the other workers lost their connections to it; it was stopped before it printed why"
	for _, tt := range []struct {
		name    string
		said    []string // "" and what begins with !: it was stopped
		workers int
		want    string
	}{
		{"one is left", []string{lost, lost, ""}, 3, "rank 2: " + cause},
		{"one was stopped after its error", []string{lost, "!" + lost, ""}, 3, "rank 2: " + cause},
		{"one has succeeded", []string{lost, lost, ""}, 4, "rank 0: RuntimeError: "},
		{"how many there were is not known", []string{lost, lost, ""}, 0, "rank 0: RuntimeError: "},
		{"two are left", []string{lost, "", ""}, 3, "rank 0: RuntimeError: "},
		{"nobody is left", []string{lost, lost, lost}, 3, "rank 0: RuntimeError: "},
		{"the first one only waited", []string{slow, lost, ""}, 3, "rank 0: RuntimeError: "},
	} {
		var all []*failure.ProcessFailure
		for i, said := range tt.said {
			o := failure.Observation{Rank: i, Ended: after(time.Duration(i)), ExitCode: 1, Evidence: failure.Evidence{Workers: tt.workers, StderrTail: []byte(said)}}
			if said, stopped := strings.CutPrefix(said, "!"); stopped || said == "" {
				o.StderrTail = []byte(said)
				o.ExitCode, o.StoppedBy = -15, 15
			}
			all = append(all, failure.New(o))
		}
		root := failure.NewReport(failure.ReportConfig{}, all).Root()
		if got := fmt.Sprintf("rank %d: %s", root.Rank, root.Cause); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if strings.Contains(root.Cause, cause) != strings.Contains(root.Hint, "finally") {
			t.Errorf("%s: hint %q", tt.name, root.Hint)
		}
	}
}
