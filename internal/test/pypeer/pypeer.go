// Package pypeer lets tests run real PyTorch as the judge of what muster does:
// a Python interpreter that can import torch, and helpers to run scripts with it.
//
// It never installs anything. `make venv` makes the virtual environment that it
// looks for; a test that needs PyTorch skips, and says so, where there is none.
package pypeer

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// EnvPython names the environment variable that points at an interpreter with
// PyTorch. Without it the virtual environment of `make venv` is used.
const EnvPython = "MUSTER_PYTHON"

// EnvPythonState names the environment variable in which test.sh says what is installed.
const EnvPythonState = "MUSTER_PYTHON_STATE"

// VenvDir is where `make venv` keeps PyTorch: muster/venv in the user's cache
// directory.
func VenvDir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "muster", "venv"), nil
}

var find = sync.OnceValues(func() (string, string) {
	python := os.Getenv(EnvPython)
	_ = os.Getenv(EnvPythonState) // go test has a cached result depend on it
	if python == "" {
		dir, err := VenvDir()
		if err != nil {
			return "", err.Error()
		}
		python = filepath.Join(dir, "bin", "python3")
	}
	// find_spec is fast where `import torch` takes over a second.
	out, err := exec.Command(python, "-c",
		"import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)").CombinedOutput()
	if err != nil {
		return "", python + " has no torch (" + err.Error() + "): " + string(out)
	}
	return python, ""
})

// Python returns an interpreter that can import torch, or skips the test. Scripts that it is to run
// are in testdata, or in directories given here: go test has a cached result depend on them.
func Python(t testing.TB, scripts ...string) string {
	t.Helper()
	for _, dir := range append(scripts, "testdata") {
		_, _ = os.ReadDir(dir)
	}
	python, why := find()
	if python == "" {
		t.Skipf("needs PyTorch; `make venv` installs it: %s", why)
	}
	return python
}

// Torchrun returns the real torchrun that belongs to Python, or skips the test.
func Torchrun(t testing.TB) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(Python(t)), "torchrun")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("needs torchrun beside the interpreter: %v", err)
	}
	return path
}
