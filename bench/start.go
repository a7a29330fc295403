//go:build linux

package main

import (
	"fmt"
	"syscall"
)

// measureStart times a whole job of /bin/true, from fork to the end of wait.
// The floor forks and executes /bin/true as often, with nothing between.
func measureStart(l *lab) ([]*row, error) {
	var rows []*row
	for _, nproc := range []int{1, 8} {
		r := &row{
			What:  fmt.Sprintf("wall time of `--standalone --nproc-per-node=%d --no-python /bin/true`", nproc),
			Chart: fmt.Sprintf("whole job of %d × /bin/true", nproc),
			Goal:  map[int]float64{1: 0.010, 8: 0.020}[nproc],
			Bar:   map[int]string{8: "a job of 8 workers that do nothing"}[nproc],
		}
		rows = append(rows, r)
		for round := -1; round < l.n(12, 2); round++ { // the first warms caches and is not counted
			for _, c := range l.contenders() {
				times := 5
				if c == torchrun {
					times = 1
				}
				for range times {
					took, err := l.startOnce(c, nproc)
					if err != nil {
						return nil, fmt.Errorf("%s: %w", c, err)
					}
					if round >= 0 {
						r.add(c, took)
					}
				}
			}
		}
	}
	return rows, nil
}

func (l *lab) startOnce(contender string, nproc int) (float64, error) {
	if contender == floor {
		argv, pids := []string{"/bin/true"}, make([]int, nproc)
		begin := now()
		for i := range pids {
			pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}})
			if err != nil {
				return 0, err
			}
			pids[i] = pid
		}
		for _, pid := range pids {
			var ws syscall.WaitStatus
			for {
				if _, err := syscall.Wait4(pid, &ws, 0, nil); err != syscall.EINTR {
					break
				}
			}
		}
		return float64(now()-begin) / 1e9, nil
	}
	j, err := l.start(l.argv(contender, nproc, nil, "/bin/true"), console{})
	if err != nil {
		return 0, err
	}
	defer j.discard()
	return j.secondsAfter(j.expect(0))
}

func (j *job) secondsAfter(err error) (float64, error) { return j.seconds(), err }
