package process_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/process"
)

// programs are what the test binary can be instead of a test: programs that use
// the package, which a test can kill, or put somewhere. What they have to tell goes
// to the board, or to stdout.
var programs = map[string]func(args []string) error{
	"guarded":      guarded,
	"oom":          oom,
	"endings":      endings,
	"whole":        whole,
	unpreparedWord: unpreparedMain,
}

// unpreparedWord names the program whose main calls neither GuardMain nor FuncMain.
const unpreparedWord = "unprepared"

func unprepared() bool {
	return len(os.Args) > 2 && os.Args[1] == programWord && os.Args[2] == unpreparedWord
}

const programWord = "program" // the first argument

func programMain() {
	if len(os.Args) < 3 || os.Args[1] != programWord {
		return
	}
	if err := programs[os.Args[2]](os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		testproc.Say("error: " + os.Args[2] + ": " + err.Error())
		os.Exit(1)
	}
	os.Exit(0)
}

// program returns a program that is not started yet. When the test ends it is
// killed if it still runs.
func program(t *testing.T, lab *testproc.Lab, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(testproc.Program(), append([]string{programWord}, args...)...)
	cmd.Env = lab.Env()
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	t.Cleanup(func() {
		if cmd.Process != nil && cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd
}

// scripted is a Config of workers that run scripts, their steps separated by "/".
func scripted(scripts []string) process.Config {
	cfg := process.Config{Entrypoint: testproc.Program(), Args: map[int][]string{}, Envs: noEnvs(len(scripts)), Grace: long, Leftovers: process.Leftovers{LeftoverGrace: long}}
	for i, script := range scripts {
		cfg.Args[i] = testproc.Args(strings.Split(script, "/")...)
	}
	return cfg
}

// leftFiles names a directory with a file that the program would have removed.
const leftFiles = "PROCESS_TEST_LEFT"

// guarded is a program with a guard, with cgroups if args[0] says so, and with
// workers that run the other args.
func guarded(args []string) error {
	s, err := process.NewSupervisor(process.SupervisorConfig{Guard: true, NoCgroup: args[0] != "cgroups", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer s.Close()
	if dir := os.Getenv(leftFiles); dir != "" {
		for range 20 { // more than a pipe holds, before there is a guard that reads it
			s.RemoveIfKilled("/" + strings.Repeat("x", 4000))
		}
		s.RemoveIfKilled(filepath.Join(dir, "file"), dir)
	}
	g, err := s.Start(scripted(args[1:]))
	if err != nil {
		return err
	}
	testproc.Say(fmt.Sprintf("guard %d", s.GuardPID()))
	if s.HasCgroup() {
		testproc.Say("cgroup " + s.CgroupPath())
	} else {
		testproc.Say("cgroup (none)")
	}
	_, err = g.Wait(context.Background())
	return err
}

// unpreparedMain is a program with a guard whose main has called neither GuardMain nor
// FuncMain. It says what it got.
func unpreparedMain(args []string) error {
	s, err := process.NewSupervisor(process.SupervisorConfig{Guard: true, Logger: slog.New(slog.NewTextHandler(os.Stdout, nil))})
	if err != nil {
		return err
	}
	defer s.Close()
	if _, err := s.Start(process.Config{Func: "echo", Args: map[int][]string{0: nil}, Envs: noEnvs(1)}); err != nil {
		fmt.Println(err)
	}
	g, err := s.Start(scripted(args))
	if err != nil {
		return err
	}
	fmt.Println("guard", s.GuardPID())
	r, err := g.Wait(context.Background())
	fmt.Println("codes", codes(r))
	return err
}

// endings is a program without cgroups that runs workers one after the other and
// prints how each ended.
func endings(scripts []string) error {
	s, err := process.NewSupervisor(process.SupervisorConfig{NoCgroup: true})
	if err != nil {
		return err
	}
	defer s.Close()
	for i, script := range scripts {
		cfg := scripted([]string{script})
		cfg.LeftoverGrace = time.Millisecond
		g, err := s.Start(cfg)
		if err != nil {
			return err
		}
		r, err := g.Wait(context.Background())
		if err != nil {
			return err
		}
		fmt.Printf("%d: %d\n", i, r.Exits[0].Code)
	}
	return nil
}

// whole is a program that does nothing but run workers, without cgroups. It says when they have
// ended, and ends with its stdin.
func whole(scripts []string) error {
	s, err := process.NewSupervisor(process.SupervisorConfig{WholeProgram: true, NoCgroup: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer s.Close()
	testproc.Say("open")
	cfg := scripted(scripts)
	cfg.LeftoverGrace = 0
	g, err := s.Start(cfg)
	if err != nil {
		return err
	}
	if _, err := g.Wait(context.Background()); err != nil {
		return err
	}
	testproc.Say("over")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// oom is a program in the cgroup args[0], without the kernel's log if args[1] says
// so, and with workers that run the other args.
func oom(args []string) error {
	if err := os.WriteFile(args[0]+"/cgroup.procs", []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		return err
	}
	if args[1] == "no log" {
		if err := unix.Mount("/dev/null", "/dev/kmsg", "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	s, err := process.NewSupervisor(process.SupervisorConfig{NoCgroup: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer s.Close()
	g, err := s.Start(scripted(args[2:]))
	if err != nil {
		return err
	}
	r, err := g.Wait(context.Background())
	if err != nil {
		return err
	}
	for i := range len(r.Exits) {
		x := r.Exits[i]
		testproc.Say(fmt.Sprintf("%d %d %d %s", x.LocalRank, x.PID, x.Code, x.OOMKilled))
	}
	return nil
}
