//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// named is set in the environment of a process that need not look for the name of
// 127.0.0.1 elsewhere.
const named = "MUSTER_BENCH_NAMED"

const hostsFile = "/etc/hosts"

// PyTorch's server asks for the name of a client that connects before it takes the next.
// Loopback as it sees it (::ffff:127.0.0.1) stands in few hosts files, so each client
// would wait for a name server, and that would be all that is measured.
const loopbackName = "::ffff:127.0.0.1 localhost\n"

// withNames runs this program again with a hosts file, in a mount namespace of its
// own, that names loopback. It returns false, and runs nothing, where that is not
// needed or not allowed.
func withNames() (status int, ran bool, err error) {
	if os.Getenv(named) != "" || namesLoopback() || os.Geteuid() != 0 {
		return 0, false, nil
	}
	self, err := os.Executable()
	if err != nil {
		return 0, false, err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), named+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGTERM}
	signal.Ignore(syscall.SIGINT) // the other one gets it too
	if err := cmd.Start(); err != nil {
		signal.Reset(syscall.SIGINT)
		return 0, false, nil // no namespaces here
	}
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), true, nil
	}
	return 0, true, err
}

// nameLoopback replaces the hosts file for this process and those that it starts.
// The copy is made in dir.
func nameLoopback(dir string) error {
	if os.Getenv(named) == "" {
		return nil
	}
	text, err := os.ReadFile(hostsFile)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	copied := filepath.Join(dir, "hosts")
	if err := os.WriteFile(copied, append(text, "\n"+loopbackName...), 0o644); err != nil {
		return err
	}
	// What is mounted here must not be seen elsewhere.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mounts of its own: %w", err)
	}
	if err := unix.Mount(copied, hostsFile, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount on %s: %w", hostsFile, err)
	}
	return nil
}

func namesLoopback() bool {
	text, _ := os.ReadFile(hostsFile)
	return strings.Contains(string(text), "::ffff:127.0.0.1")
}
