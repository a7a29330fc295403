// Command embed runs a job as part of what else it does: it has children of its
// own, and its main calls nothing that muster wants called.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/muster-run/muster/launch"
)

// What the main thread forks is listed where orphans are.
func init() { runtime.LockOSThread() }

func main() {
	note("main")
	short := exec.Command("sh", "-c", "exit 7")
	long := exec.Command("cat")
	input, err := long.StdinPipe()
	check(err)
	check(short.Start())
	check(long.Start())

	cfg := launch.Default()
	cfg.NprocPerNode = 2
	cfg.Workers.Entrypoint, cfg.Workers.Args = "/bin/sh", []string{"-c", "echo worker >>" + notes() + "; sleep 0.3"}
	result, err := launch.Run(context.Background(), cfg)
	check(err)
	note("job " + string(result.State))

	note(fmt.Sprint("short: ", short.Wait()))
	check(input.Close())
	note(fmt.Sprint("long: ", long.Wait()))
}

// notes is the file in which the test reads what happened. It is found without the
// environment, which a process that muster starts may lack.
func notes() string {
	self, err := os.Executable()
	check(err)
	return filepath.Dir(self) + "/notes"
}

func note(line string) {
	f, err := os.OpenFile(notes(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	check(err)
	_, err = io.WriteString(f, line+"\n")
	check(err)
	check(f.Close())
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
