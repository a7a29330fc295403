package devices

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/muster-run/muster/internal/host/children"
)

// smiTimeout bounds nvidia-smi, which takes seconds where the driver is not
// kept loaded and for ever where it is broken.
const smiTimeout = 30 * time.Second

// runSMI runs nvidia-smi from PATH, or from where WSL keeps it, and returns its
// output.
func runSMI(ctx context.Context, args ...string) ([]byte, error) {
	dirs := append(filepath.SplitList(os.Getenv("PATH")), "/usr/lib/wsl/lib")
	for _, dir := range dirs {
		path := filepath.Join(dir, "nvidia-smi")
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return output(ctx, path, args, smiTimeout)
		}
	}
	return nil, fmt.Errorf("not found: %w", fs.ErrNotExist)
}

// maxOutput bounds what is kept of its output.
const maxOutput = 1 << 20

// output runs a program and returns what it writes to stdout.
func output(ctx context.Context, path string, args []string, timeout time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = time.Second
	out, _, err := children.Output(cmd, maxOutput)
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("no answer within %v", timeout)
	case err != nil:
		return nil, fmt.Errorf("%w: %.200s", err, bytes.TrimSpace(out))
	}
	return out, nil
}
