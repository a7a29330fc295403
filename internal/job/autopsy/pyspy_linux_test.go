package autopsy_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/job/autopsy"
	"github.com/muster-run/muster/internal/test/testproc"
)

const nobody = 65534

func init() {
	if len(os.Args) == 5 && os.Args[1] == "swap" {
		swap(os.Args[2], os.Args[3], os.Args[4])
	}
}

// swap is a process of another user's, called python3, that puts a program of its own in
// the place of the link py-spy as soon as anybody opens what the link points to.
func swap(target, with, link string) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err == nil {
		_, err = unix.InotifyAddWatch(fd, target, unix.IN_OPEN)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ready")
	if _, err := unix.Read(fd, make([]byte, 4096)); err == nil {
		_ = os.Rename(with, link)
	}
	select {}
}

// A process does not choose what another user's muster runs, neither by what it puts in
// the place of a program that was looked at nor by a link to a shell, for which the
// working directory has a script.
func TestForeignPySpy(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs to be root, to look at another user's process")
	}
	for _, attack := range []string{"race", "shell"} {
		t.Run(attack, func(t *testing.T) {
			dir := publicDir(t)
			evil, ours := filepath.Join(dir, "evil"), filepath.Join(dir, "ours")
			path := func(name string) string { return filepath.Join(evil, name) }
			mark := path("ran")
			script := "/usr/bin/id -u >" + mark + "\n"
			target := filepath.Join(ours, "innocent")
			must(t, os.Mkdir(evil, 0o755), os.Mkdir(ours, 0o755))
			copyFile(t, testproc.Program(), path("python3"))
			must(t, testproc.WriteProgram(target, "#!/bin/sh\n"),
				testproc.WriteProgram(path("script"), "#!/bin/sh\n"+script),
				os.WriteFile(path("dump"), []byte(script), 0o644))
			if attack == "shell" {
				must(t, os.Symlink("/bin/sh", path("py-spy")))
			} else {
				must(t, os.Symlink(target, path("py-spy")))
			}
			for _, name := range []string{"", "python3", "script", "dump"} {
				must(t, os.Chown(path(name), nobody, nobody))
			}
			t.Chdir(evil)
			t.Setenv("PATH", ours) // without py-spy
			pid := startAs(t, nobody, path("python3"), "swap", target, path("script"), path("py-spy"))
			w := take(t, autopsy.Config{}, autopsy.Target{PID: pid}).Workers[0]
			if who, err := os.ReadFile(mark); err == nil {
				t.Errorf("the process made us run its program, as user %s", who)
			}
			if text := strings.Join(w.Python.Problems, "\n"); !strings.Contains(text, "another user's") {
				t.Errorf("problems %q", text)
			}

			// What our own PATH has is run for it.
			must(t, os.Rename(target, filepath.Join(ours, "py-spy")),
				testproc.WriteProgram(filepath.Join(ours, "py-spy"), fmt.Sprintf(`#!/bin/sh
echo '[{"pid":%d,"os_thread_id":%[1]d,"thread_name":"main","frames":[]}]'
`, pid)))
			if w = take(t, autopsy.Config{}, autopsy.Target{PID: pid}).Workers[0]; w.Python.Source != "py-spy" {
				t.Errorf("with py-spy in PATH: %+v", w.Python)
			}
		})
	}
}

// publicDir makes a directory that every user may enter, in which only root writes.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "autopsy")
	must(t, err, os.Chmod(dir, 0o755))
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// startAs runs a program as another user until the test ends, and waits until it is ready.
func startAs(t *testing.T, uid uint32, program string, args ...string) (pid int) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = []string{"GORACE=atexit_sleep_ms=0", "PATH=" + filepath.Dir(program), testproc.Unpaused}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	must(t, err, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	line := make([]byte, 64)
	if n, err := out.Read(line); string(line[:n]) != "ready\n" {
		t.Fatalf("%s said %q, %v", program, line[:n], err)
	}
	return cmd.Process.Pid
}

// Of a process of our own, py-spy is run from where only we and root can have put it.
func TestTrustedPySpy(t *testing.T) {
	home := t.TempDir()
	must(t, os.Chmod(home, 0o755))
	bin := filepath.Join(home, "env", "bin")
	program := filepath.Join(bin, "py-spy")
	for _, tt := range []struct {
		name, want string // want is what the error says, "" for none
		change     func() error
	}{
		{"ours", "", func() error { return nil }},
		{"link to py-spy", "", func() error {
			must(t, os.Mkdir(filepath.Join(home, "pkg"), 0o755), os.Rename(program, filepath.Join(home, "pkg", "py-spy")))
			return os.Symlink("../../pkg/py-spy", program)
		}},
		{"link to another program", "is a link to", func() error { must(t, os.Remove(program)); return os.Symlink("/bin/sh", program) }},
		{"file is group-writable", program + " belongs", func() error {
			if err := anyGroup(program); err != nil {
				return err
			}
			return os.Chmod(program, 0o775)
		}},
		{"file is writable", program + " belongs", func() error { return os.Chmod(program, 0o757) }},
		{"directory is writable", bin + " belongs", func() error { return os.Chmod(bin, 0o777) }},
		{"directory is sticky", bin + " belongs", func() error { return os.Chmod(bin, 0o777|os.ModeSticky) }},
		{"parent is writable", filepath.Dir(bin) + " belongs", func() error { return os.Chmod(filepath.Dir(bin), 0o777) }},
		{"parent is sticky", "", func() error { return os.Chmod(filepath.Dir(bin), 0o777|os.ModeSticky) }},
		{"parent of another user", filepath.Dir(bin) + " belongs", func() error { return another(filepath.Dir(bin)) }},
		{"file of another user", program + " belongs", func() error { return another(program) }},
		{"not executable", "does not exist", func() error { return os.Chmod(program, 0o644) }},
		{"none", "does not exist", func() error { return os.Remove(program) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			must(t, os.RemoveAll(filepath.Join(home, "env")), os.RemoveAll(filepath.Join(home, "pkg")), os.MkdirAll(bin, 0o755),
				os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755))
			if err := tt.change(); os.Geteuid() != 0 && os.IsPermission(err) {
				t.Skip("needs to be root, to give a file to another user")
			} else if err != nil {
				t.Fatal(err)
			}
			f, err := autopsy.OpenTrusted(program)
			if err == nil {
				f.Close()
			}
			if got := fmt.Sprint(err); (tt.want == "") != (err == nil) || err != nil && !strings.Contains(got, tt.want) {
				t.Errorf("%s, want %q", got, tt.want)
			}
		})
	}
}

// another gives a file to another user, which takes root.
func another(path string) error {
	if os.Geteuid() != 0 {
		return os.ErrPermission
	}
	return os.Chown(path, nobody, -1)
}

// anyGroup gives a file to a group that is not the user's own.
func anyGroup(path string) error {
	if os.Geteuid() != 0 {
		return os.ErrPermission
	}
	return os.Chown(path, -1, nobody)
}
