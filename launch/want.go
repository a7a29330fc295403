package launch

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/safeopen"
	"github.com/muster-run/muster/internal/sleep"
	"github.com/muster-run/muster/internal/text"
)

const (
	// wantEvery is the time between two looks at Config.WantFile.
	wantEvery = 2 * time.Second
	maxWant   = 100 // bytes of it
)

// resolveWant finds out how many hosts there shall be at the start.
func (cfg *Config) resolveWant() error {
	if cfg.WantFile != "" {
		n, err := readWant(cfg.WantFile)
		if err != nil {
			return fmt.Errorf("want file: %w", err)
		}
		cfg.Want = n
	}
	if cfg.Want != 0 && (cfg.Want < cfg.MinNodes || cfg.Want > cfg.MaxNodes) {
		return fmt.Errorf("want: %s, and %d of them are wanted; want MIN to MAX of nnodes=MIN:MAX", nodes(*cfg), cfg.Want)
	}
	return nil
}

// readWant reads a number of hosts from a file. It follows links: a file of a volume of
// Kubernetes is one.
func readWant(path string) (int, error) {
	f, _, err := safeopen.OpenIf(path, os.O_RDONLY, func(info fs.FileInfo) error {
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is no regular file; left alone", path)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxWant))
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%s holds %q, which is no number of hosts", path, text.Line(string(content), maxWant))
	}
	return n, nil
}

// followWant scales the job to what its WantFile changes to, until ctx ends. Only a change
// counts: where `muster scale` has been used since, the file has nothing to say.
func (cfg *Config) followWant(ctx context.Context, every time.Duration, scale func(hosts int) error) {
	last, said := cfg.Want, ""
	for sleep.For(ctx, every) == nil {
		n, err := readWant(cfg.WantFile)
		if err == nil && n != last {
			if err = scale(n); err == nil {
				last = n
			}
		}
		switch {
		case err == nil:
			said = ""
		case err.Error() != said: // it is tried again and again
			said = err.Error()
			cfg.Logger.Warn("the file of --want-file does not set the job's size, which stays; trying again", "file", cfg.WantFile, "error", err)
		}
	}
}
