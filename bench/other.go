//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench: needs Linux: memory, wake-ups and processor time are read from /proc")
	os.Exit(1)
}
