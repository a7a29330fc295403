// Command fifo speaks with PyTorch's file timers, from either side:
//
//	fifo serve PATH                  a server for FileTimerClient(PATH), until its stdin ends
//	fifo run PATH LIMIT PROGRAM ...  a client of FileTimerServer(PATH): the program has a time limit
package main

import (
	"fmt"
	"io"
	"log"
	"os"
	"syscall"
	"time"

	"github.com/muster-run/muster/timer"
)

func main() {
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "serve":
		serve(args[1])
	case len(args) > 3 && args[0] == "run":
		limit, err := time.ParseDuration(args[2])
		if err != nil {
			log.Fatal(err)
		}
		log.Fatal(run(args[1], limit, args[3:]))
	default:
		log.Fatal("usage: fifo serve PATH | fifo run PATH LIMIT PROGRAM [ARGUMENT ...]")
	}
}

func serve(path string) {
	server, err := timer.StartFIFO(timer.Config{OnExpiry: func(r timer.Request, killed bool) {
		fmt.Printf("process %d: timer %q has expired, process killed: %v\n", r.PID, r.ScopeID, killed)
	}}, path)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("serving", server.Path())
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := server.Close(); err != nil {
		log.Fatal(err)
	}
}

// run becomes the program, so the timer of this process is the program's.
func run(path string, limit time.Duration, args []string) error {
	client := &timer.FileClient{Path: path, Signal: syscall.SIGTERM}
	if _, err := timer.Expires(client, limit, args[0]); err != nil {
		return err
	}
	return syscall.Exec(args[0], args, os.Environ())
}
