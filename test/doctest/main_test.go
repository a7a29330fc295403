//go:build linux

package doctest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// root is the source tree.
const root = "../.."

// bin has muster, also by the name torchrun, muster-quorum, and an etcd; python is
// the directory of the interpreter, which a script may stand before in PATH.
var bin, python string

func TestMain(m *testing.M) {
	code, err := testMain(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func testMain(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "doctest-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	bin = filepath.Join(dir, "bin")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", bin+"/", "./cmd/muster", "./cmd/muster-quorum", "./cmd/muster-quorum/internal/testetcd")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build: %w\n%s", err, out)
	}
	if err := os.Symlink("muster", filepath.Join(bin, "torchrun")); err != nil {
		return 1, err
	}
	interpreter, err := exec.Command("python3", "-c", "import sys; print(sys.executable, end='')").Output()
	if err != nil {
		return 1, fmt.Errorf("python3: %w", err)
	}
	python = filepath.Dir(string(interpreter))
	return m.Run(), nil
}
