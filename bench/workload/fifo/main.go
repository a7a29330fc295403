//go:build linux

// Command fifo serves timers over a FIFO, as an agent does, until its standard input ends.
package main

import (
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/muster-run/muster/timer"
)

func main() {
	path := os.Args[1]
	seconds, err := strconv.ParseFloat(os.Args[2], 64)
	if err != nil {
		log.Fatal(err)
	}
	server, err := timer.StartFIFO(timer.Config{MaxInterval: time.Duration(seconds * float64(time.Second))}, path)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on " + path)
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := server.Close(); err != nil {
		log.Fatal(err)
	}
}
