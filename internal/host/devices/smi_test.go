package devices

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/test/testproc"
)

// nvidiaSMI puts a program of that name into PATH.
func nvidiaSMI(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := testproc.WriteProgram(filepath.Join(dir, "nvidia-smi"), "#!/bin/sh\n"+script); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", "/nowhere:"+dir)
}

func TestRunSMI(t *testing.T) {
	nvidiaSMI(t, `echo "asked for $*"`)
	if out, err := runSMI(t.Context(), "--query", "x"); string(out) != "asked for --query x\n" || err != nil {
		t.Errorf("got %q, %v", out, err)
	}
	nvidiaSMI(t, "echo broken; exit 9")
	if _, err := runSMI(t.Context()); err == nil || !strings.Contains(err.Error(), "exit status 9: broken") {
		t.Errorf("error %v", err)
	}
	t.Setenv("PATH", "/nowhere")
	if _, err := runSMI(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

func TestSMITimeout(t *testing.T) {
	// The child of the shell keeps the pipe open after the shell is dead.
	nvidiaSMI(t, "/bin/sleep 60 & wait")
	start := time.Now()
	_, err := output(t.Context(), filepath.Join(filepath.SplitList(os.Getenv("PATH"))[1], "nvidia-smi"), nil, 50*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "no answer within 50ms") {
		t.Errorf("error %v", err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
}
