package failure_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/muster-run/muster/failure"
)

// A container's error file is often a mount of its own, such as Kubernetes' termination log, or in
// a directory in which nobody may make files: it is written in place.
func TestErrorFileThatCannotBeReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	if err := os.WriteFile(path, []byte(strings.Repeat("old", 1000)), 0o644); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // it ends with the thread, whose mounts are its own
		err := syscall.Unshare(syscall.CLONE_NEWNS)
		if err == nil {
			err = syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
		}
		if err == nil {
			err = syscall.Mount(path, path, "", syscall.MS_BIND, "")
		}
		if err != nil {
			os.Chmod(filepath.Dir(path), 0o555) // for others than root, who may mount
		}
		done <- failure.WriteErrorFile(path, errors.New("boom"))
	}()
	err := <-done
	os.Chmod(filepath.Dir(path), 0o755)
	data, _ := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(data), `{"message": {"message": "boom", `) || strings.Contains(string(data), "old") {
		t.Errorf("%v; the file has %.100s", err, data)
	}
	if files, _ := os.ReadDir(filepath.Dir(path)); len(files) != 1 {
		t.Errorf("left behind: %v", files)
	}
}
