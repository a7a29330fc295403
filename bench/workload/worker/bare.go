//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// bare is the floor: `bare <n> <restarts> <dir or -> argv…` starts n workers,
// waits, sends SIGTERM to the others when one fails, starts them all again as
// often as it may, and exits 1 when it may not. With a directory the workers
// write their output there themselves.
func bare(args []string) int {
	n, restarts, dir, argv := atoi(args[0]), atoi(args[1]), args[2], args[3:]
	for restart := 0; ; restart++ {
		alive := map[int]bool{}
		for rank := range n {
			files := []uintptr{0, 1, 2}
			if dir != "-" {
				for k, name := range []string{"stdout", "stderr"} {
					f, err := os.Create(filepath.Join(dir, strconv.Itoa(rank)+"."+name))
					if err != nil {
						return 73
					}
					defer f.Close()
					files[k+1] = f.Fd()
				}
			}
			env := []string{"LOCAL_RANK=" + strconv.Itoa(rank), "TORCHELASTIC_RESTART_COUNT=" + strconv.Itoa(restart)}
			for _, kv := range os.Environ() {
				if !strings.HasPrefix(kv, "LOCAL_RANK=") && !strings.HasPrefix(kv, "TORCHELASTIC_RESTART_COUNT=") {
					env = append(env, kv)
				}
			}
			pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{
				Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true},
			})
			if err != nil {
				os.Stderr.WriteString(err.Error() + "\n")
				return 71
			}
			alive[pid] = true
		}
		failed := false
		for len(alive) > 0 {
			var ws syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &ws, 0, nil)
			if err == syscall.EINTR {
				continue
			}
			if err != nil {
				return 71
			}
			delete(alive, pid)
			if ws.ExitStatus() != 0 && !failed {
				failed = true
				for other := range alive {
					syscall.Kill(-other, syscall.SIGTERM)
				}
			}
		}
		if !failed {
			return 0
		}
		if restart == restarts {
			return 1
		}
	}
}
