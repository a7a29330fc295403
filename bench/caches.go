//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// measureCaches compiles a model on a host where nothing was compiled before; under muster with
// --cache-dir, and with what another host has put there. The floor is the second time on one host.
func measureCaches(l *lab) ([]*row, error) {
	if l.python == "" || l.musterBin == "" {
		return nil, nil
	}
	script, err := filepath.Abs("bench/workload/compile.py")
	if err != nil {
		return nil, err
	}
	r := &row{What: "torch.compile on a host that is new to the job: the first step", Note: "a model of two layers on a CPU; muster with `--cache-dir`, into which another host has put its caches; the floor is the second time on the same host"}
	for range l.n(3, 1) {
		dir, err := os.MkdirTemp(l.dir, "caches")
		if err != nil {
			return nil, err
		}
		for _, run := range []struct {
			as, home string
			carried  bool
		}{{torchrun, "a", false}, {floor, "a", false}, {"", "b", true}, {muster, "c", true}} {
			flags, contender := []string(nil), torchrun
			if run.carried {
				flags, contender = []string{"--cache-dir=" + filepath.Join(dir, "shared")}, muster
			}
			home := filepath.Join(dir, run.home)
			if err := os.MkdirAll(home, 0o700); err != nil {
				return nil, err
			}
			argv := append([]string{"/usr/bin/env", "TMPDIR=" + home, "XDG_CACHE_HOME=" + home}, l.argv(contender, 1, flags, l.python, script)...)
			j, err := l.start(argv, console{})
			if err != nil {
				return nil, err
			}
			if err := j.expect(0); err != nil {
				return nil, fmt.Errorf("%s: %w", contender, err)
			}
			e, err := j.first("step", 0)
			if err != nil || e == nil {
				return nil, fmt.Errorf("%s: no step: %w", contender, err)
			}
			if run.as != "" {
				r.add(run.as, float64(e.Additional)/1e9)
			}
			j.discard()
		}
	}
	return []*row{r}, nil
}
