// Command watchdog starts children and gives each of them a time limit. One that takes longer is killed:
//
//	watchdog 30s sync-data 5m compact-index
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/muster-run/muster/timer"
)

func main() {
	queue := &timer.LocalQueue{}
	server, err := timer.StartLocal(timer.Config{OnExpiry: func(r timer.Request, killed bool) {
		if killed {
			fmt.Printf("%s: killed at its time limit\n", r.ScopeID)
		}
	}}, queue)
	if err != nil {
		log.Fatal(err)
	}
	var children sync.WaitGroup
	for args := os.Args[1:]; len(args) >= 2; args = args[2:] {
		limit, err := time.ParseDuration(args[0])
		if err != nil {
			log.Fatal(err)
		}
		child := exec.Command("sh", "-c", args[1])
		// A child that is written in Go can have timers of its own steps: timer.FromEnv().
		child.Env = append(os.Environ(), server.Env()...)
		if err := child.Start(); err != nil {
			log.Fatal(err)
		}
		client := &timer.LocalClient{Queue: queue, PID: child.Process.Pid}
		release, err := timer.Expires(client, limit, args[1])
		children.Go(func() {
			err := errors.Join(err, child.Wait())
			if err == nil {
				err = release()
			}
			fmt.Printf("%s: ended: %v\n", args[1], err)
		})
	}
	children.Wait()
	if err := server.Close(); err != nil {
		log.Fatal(err)
	}
}
