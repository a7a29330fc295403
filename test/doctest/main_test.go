//go:build linux

package doctest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/muster-run/muster/internal/test/programs"
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
	if err := programs.Put(bin, "muster", "muster-quorum", "testetcd"); err != nil {
		return 1, err
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
