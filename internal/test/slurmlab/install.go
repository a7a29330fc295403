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

	"github.com/muster-run/muster/internal/test/testproc"
)

// A kit is programs that tests need, and the packages that have them.
type kit struct {
	programs, packages []string
	install            func() string // gets the packages if it may; it returns why there are none
}

func newKit(programs, packages []string) *kit {
	k := &kit{programs: programs, packages: packages}
	k.install = sync.OnceValue(k.get)
	return k
}

var (
	slurm = newKit(
		[]string{"munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol"},
		[]string{"slurmctld", "slurmd", "slurm-client", "munge"})
	mpi       = newKit([]string{"mpirun.openmpi", "mpiexec.hydra"}, []string{"openmpi-bin", "mpich"})
	logrotate = newKit([]string{"logrotate"}, []string{"logrotate"})
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

func missing(programs []string) []string {
	var names []string
	for _, name := range programs {
		if _, ok := find(name); !ok {
			names = append(names, name)
		}
	}
	return names
}

func (k *kit) get() string {
	lacks := missing(k.programs)
	if lacks == nil {
		return ""
	}
	hint := "needs " + strings.Join(lacks, ", ") + "; on Debian: apt-get install " + strings.Join(k.packages, " ")
	apt, err := exec.LookPath("apt-get")
	switch {
	case os.Geteuid() != 0:
		return hint + " (not root)"
	case err != nil:
		return hint + " (no apt-get)"
	case exists("/run/systemd/system"):
		return hint + " (not done here: systemd would start daemons of packages)"
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
	if missing(k.programs) == nil {
		return ""
	}
	run := func(args ...string) ([]byte, error) {
		cmd := exec.Command(apt, append([]string{"-q", "-y", "-o", "DPkg::Lock::Timeout=120"}, args...)...)
		// A pause of its su would stop dpkg, for good.
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", testproc.Unpaused)
		return cmd.CombinedOutput()
	}
	args := append([]string{"install", "--no-install-recommends"}, k.packages...)
	out, err := run(args...)
	if err != nil {
		if out, err = run("update"); err == nil {
			out, err = run(args...)
		}
	}
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return hint + " (it said: " + lines[len(lines)-1] + ")"
	}
	if lacks = missing(k.programs); lacks != nil {
		return hint + " (the packages lack it)"
	}
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// need skips the test where there is no Slurm, and returns where its programs are.
func need(t testing.TB) func(name string) string {
	t.Helper()
	if why := slurm.install(); why != "" {
		t.Skip("slurmlab: " + why)
	}
	return func(name string) string { path, _ := find(name); return path }
}

// NeedMPI skips the test where there is no such launcher of Open MPI (mpirun.openmpi) or
// MPICH (mpiexec.hydra) and none can be installed.
func NeedMPI(t testing.TB, launcher string) {
	t.Helper()
	if _, ok := find(launcher); ok {
		return
	}
	if why := mpi.install(); why != "" {
		t.Skip("slurmlab: " + why)
	}
}

// NeedLogrotate returns where logrotate is, and skips the test where there is none and none can be installed.
func NeedLogrotate(t testing.TB) string {
	t.Helper()
	if why := logrotate.install(); why != "" {
		t.Skip("slurmlab: " + why)
	}
	path, _ := find("logrotate")
	return path
}
