//go:build linux

package slurmlab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// programs are what a lab needs, and the packages that have them.
var (
	programs = []string{"munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol"}
	packages = []string{"slurmctld", "slurmd", "slurm-client", "munge"}
)

// find looks a program up, also where PATH lacks the directories of root.
func find(name string) (string, bool) {
	if path, err := exec.LookPath(name); err == nil {
		return path, true
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, true
		}
	}
	return "", false
}

func missing() []string {
	var names []string
	for _, name := range programs {
		if _, ok := find(name); !ok {
			names = append(names, name)
		}
	}
	return names
}

// install gets the packages if it may; it returns why there are none.
var install = sync.OnceValue(func() string {
	lacks := missing()
	if lacks == nil {
		return ""
	}
	hint := "needs " + strings.Join(lacks, ", ") + "; on Debian: apt-get install " + strings.Join(packages, " ")
	apt, err := exec.LookPath("apt-get")
	switch {
	case os.Geteuid() != 0:
		return hint + " (not root)"
	case err != nil:
		return hint + " (no apt-get)"
	case exists("/run/systemd/system"):
		return hint + " (not done here: systemd would start the daemons)"
	}
	// One at a time, also among test programs.
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "muster-slurmlab.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return hint + ": " + err.Error()
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return hint + ": " + err.Error()
	}
	if missing() == nil {
		return ""
	}
	get := func(args ...string) ([]byte, error) {
		cmd := exec.Command(apt, append([]string{"-q", "-y", "-o", "DPkg::Lock::Timeout=120"}, args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		return cmd.CombinedOutput()
	}
	args := append([]string{"install", "--no-install-recommends"}, packages...)
	out, err := get(args...)
	if err != nil {
		if out, err = get("update"); err == nil {
			out, err = get(args...)
		}
	}
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return hint + " (it said: " + lines[len(lines)-1] + ")"
	}
	if lacks = missing(); lacks != nil {
		return hint + " (the packages lack it)"
	}
	return ""
})

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// need skips the test where there is no Slurm, and returns where its programs are.
func need(t testing.TB) func(name string) string {
	t.Helper()
	if why := install(); why != "" {
		t.Skip("slurmlab: " + why)
	}
	return func(name string) string { path, _ := find(name); return path }
}
