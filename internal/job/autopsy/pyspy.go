package autopsy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/host/children"
)

// maxHelperOutput bounds what a helper program may say.
const maxHelperOutput = 16 << 20

// pySpy asks py-spy for a process' stacks. It does not stop the process while it reads: one that hangs stays as it is.
func (t *taking) pySpy(ctx context.Context, s *subject) Python {
	type finding struct {
		program *os.File
		err     error
	}
	found, ok := within(ctx, func() (f finding) {
		if f.program, f.err = t.findPySpy(s); f.err == nil {
			// Starting a program whose file system does not answer would hold up
			// all others that this process wants to start.
			_, f.err = f.program.Read(make([]byte, 4096))
		}
		return f
	})
	if !ok {
		found.err = errors.New("looking for it took too long: a file system does not answer")
	}
	if found.program != nil {
		defer found.program.Close()
	}
	if found.err != nil {
		return Python{Problems: []string{"py-spy: " + found.err.Error()}}
	}
	threads, err := t.runPySpy(ctx, s, found.program)
	if err != nil {
		return Python{Problems: []string{"py-spy: " + err.Error()}}
	}
	return Python{Source: "py-spy", Threads: threads}
}

// runPySpy runs py-spy, and kills it, with all it started, when most of the time is over.
func (t *taking) runPySpy(ctx context.Context, s *subject, program *os.File) ([]Thread, error) {
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
	case <-ctx.Done():
		return nil, errors.New("no time was left to run it")
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout*6/10)
	defer cancel()
	cmd := exec.CommandContext(ctx, program.Name(), "dump", "--json", "--nonblocking", "--pid", strconv.Itoa(s.PID))
	if runtime.GOOS == "linux" { // the open file, whatever has its name by now
		cmd.Path, cmd.ExtraFiles = "/proc/self/fd/3", []*os.File{program}
	}
	cmd.Dir = "/" // our directory may be anybody's
	cmd.WaitDelay = 100 * time.Millisecond
	out, said, err := children.Output(cmd, maxHelperOutput+1)
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s did not answer in time and was killed", program.Name())
	case err != nil:
		return nil, explainPySpy(err, string(said))
	case len(out) > maxHelperOutput:
		return nil, fmt.Errorf("it wrote more than %d bytes", maxHelperOutput)
	}
	threads, err := parsePySpy(out, s.PID)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program.Name(), err)
	}
	return threads, nil
}

// explainPySpy makes an error of what py-spy said when it failed.
func explainPySpy(err error, said string) error {
	line, _, _ := strings.Cut(strings.TrimSpace(said), "\n")
	line = text.Clip(strings.TrimPrefix(line, "Error: "), 300)
	if strings.Contains(said, "ermission") || strings.Contains(said, "os error 1)") {
		hint := "the agent needs the capability SYS_PTRACE, or the worker's user"
		scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
		if scope := strings.TrimSpace(string(scope)); err == nil && scope != "0" {
			hint = "kernel.yama.ptrace_scope is " + scope + ", which forbids it; set it to 0, or give the agent the capability " +
				"SYS_PTRACE"
		}
		return fmt.Errorf("not allowed to trace the process (%s); %s", line, hint)
	}
	if line == "" {
		return err
	}
	return errors.New(line)
}

// notInstalled begins the error of findPySpy where it can be installed.
const notInstalled = "not installed"

// findPySpy opens py-spy: where the worker would find it, then where we would. Where
// the worker's is depends on what the worker says, so that another user's process, or
// one that sees another file system, has no say in it.
func (t *taking) findPySpy(s *subject) (*os.File, error) {
	if t.cfg.PySpy != "" {
		return openProgram(t.cfg.PySpy)
	}
	err := errors.New(notInstalled + ": neither beside the worker's interpreter nor in PATH")
	if s.uid != os.Geteuid() || elsewhere(s.PID) {
		err = errors.New("not in the PATH of this program, the only place where it is looked for: the process is " +
			"another user's, or in a container")
	} else {
		for _, dir := range programDirs(s) {
			f, refused := openTrusted(filepath.Join(dir, "py-spy"))
			if refused == nil {
				return f, nil
			}
			if !errors.Is(refused, fs.ErrNotExist) {
				err = refused
			}
		}
	}
	if f, ours := openProgram("py-spy"); ours == nil {
		return f, nil
	}
	return nil, err
}

// openProgram opens what a shell would run.
func openProgram(name string) (*os.File, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, err
	}
	return os.Open(path)
}

// openTrusted opens a program that only we and root can have put where it is: nobody
// else may write to the file, nor to a directory on the way to it. A link counts as
// its last target, which must have the same name, so that py-spy is not a shell.
func openTrusted(path string) (*os.File, error) {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fs.ErrNotExist // or not to be seen
	}
	if filepath.Base(target) != filepath.Base(path) {
		return nil, fmt.Errorf("%s is a link to %s, and is not run", path, target)
	}
	for at, dir := "", filepath.Dir(target); at != dir; at, dir = dir, filepath.Dir(dir) {
		// In a sticky directory, as /tmp is, others do not replace a directory of ours.
		if info, err := os.Lstat(dir); err != nil || !info.IsDir() || !safeopen.Trusted(info, at != "") {
			return nil, fmt.Errorf("%s belongs to another user or may be changed by one; %s is not run", dir, path)
		}
	}
	f, _, err := safeopen.OpenIf(target, os.O_RDONLY|syscall.O_NOFOLLOW, func(info os.FileInfo) error {
		switch {
		case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
			return fs.ErrNotExist
		case !safeopen.Trusted(info, false):
			return fmt.Errorf("%s belongs to another user or may be changed by one, and is not run", path)
		}
		return nil
	})
	return f, err
}

// programDirs lists where the worker's own programs are: beside the interpreter
// as it was called, in its virtual environment, beside its binary, in its PATH.
func programDirs(s *subject) []string {
	called := s.program
	if strings.Contains(called, "/") && !filepath.IsAbs(called) {
		called = filepath.Join(s.cwd, called)
	}
	dirs := []string{filepath.Dir(called), filepath.Join(s.getenv("VIRTUAL_ENV"), "bin"), filepath.Dir(s.exe)}
	dirs = append(dirs, filepath.SplitList(s.getenv("PATH"))...)
	// What the worker does not say becomes a relative path.
	dirs = slices.DeleteFunc(dirs, func(dir string) bool { return !filepath.IsAbs(dir) })
	return dirs[:min(len(dirs), 64)]
}

// parsePySpy reads the output of `py-spy dump --json` for one process.
func parsePySpy(dump []byte, pid int) ([]Thread, error) {
	var list []struct {
		PID      int    `json:"pid"`
		ThreadID uint64 `json:"thread_id"`
		Name     string `json:"thread_name"`
		TID      int    `json:"os_thread_id"`
		Active   bool   `json:"active"`
		GIL      bool   `json:"owns_gil"`
		Frames   []struct {
			Name string `json:"name"`
			File string `json:"filename"`
			Line int    `json:"line"`
		} `json:"frames"`
	}
	if err := json.Unmarshal(dump, &list); err != nil {
		return nil, fmt.Errorf("py-spy's JSON: %w", err)
	}
	var threads []Thread
	for _, e := range list {
		if e.PID != 0 && e.PID != pid || len(threads) == maxThreads {
			continue
		}
		t := Thread{Name: e.Name, TID: e.TID, Active: e.Active, GIL: e.GIL, Main: e.TID == pid}
		if e.ThreadID != 0 {
			t.ID = fmt.Sprintf("%#x", e.ThreadID)
		}
		for _, f := range e.Frames[:min(len(e.Frames), maxFrames)] {
			t.Frames = append(t.Frames, Frame{f.Name, f.File, f.Line})
		}
		threads = append(threads, t)
	}
	if len(threads) == 0 {
		return nil, errors.New("it names no thread of the process")
	}
	return tidy(threads), nil
}
