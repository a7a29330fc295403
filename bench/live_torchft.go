//go:build linux

package main

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
)

// torchFT is PyTorch's library for the same, with limits that suit it.
const (
	torchFT        = "torchft"
	torchFTPackage = "torchft==0.2.0"
)

var lighthouseFlags = []string{"--min_replicas=2", "--join_timeout_ms=1000", "--heartbeat_timeout_ms=500", "--quorum_tick_ms=20"}

// measureTorchFT kills one of three replica groups of one worker each, and looks when the others
// have completed another step.
func (l *lab) measureTorchFT(to ...*row) (err error) {
	dir := filepath.Join(l.dir, "torchft")
	if out, err := exec.Command("internal/tools/beside.sh", l.python, dir, torchFTPackage).CombinedOutput(); err != nil {
		return fmt.Errorf("install %s: %w: %s", torchFTPackage, err, out)
	}
	script, err := filepath.Abs("bench/workload/ft.py")
	if err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	lighthouse, err := l.start(append([]string{filepath.Join(dir, "bin", "torchft_lighthouse"), "--bind=127.0.0.1:" + port}, lighthouseFlags...), console{})
	if err != nil {
		return err
	}
	t := &liveTeam{team: team{l: l, contender: torchrun}, argv: []string{filepath.Join(dir, "bin", "python3"), script, "http://127.0.0.1:" + port}}
	defer func() {
		t.agents = append(t.agents, lighthouse)
		err = errors.Join(err, t.dismiss())
	}()
	for range 3 {
		j, err := l.start(t.argv, console{})
		if err != nil {
			return err
		}
		t.agents = append(t.agents, j)
	}
	_, err = t.await(t.agents, 0, nil, 3)
	for i := 0; i < l.n(8, 1) && err == nil; i++ {
		lost, begin := t.agents[2], now()
		lost.signal(syscall.SIGKILL)
		var next int64
		if next, err = t.await(t.agents[:2], begin, nil, 2); err != nil {
			break
		}
		for _, r := range to {
			r.add(torchFT, float64(next-begin)/1e9)
		}
		if err = lost.wait(); err != nil {
			break
		}
		lost.discard()
		if t.agents[2], err = l.start(t.argv, console{}); err == nil {
			_, err = t.await(t.agents, next, nil, 3)
		}
	}
	return err
}
