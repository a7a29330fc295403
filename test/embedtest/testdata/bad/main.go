// Command bad gives the packages input that cannot be meant: nil, zero, negative, huge; calls twice, after
// the close, and with a context that is done. `bad` prints the names of its cases, `bad NAME` runs one and
// prints what comes of it.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/muster-run/muster/process"
)

// A table has a package's cases. Each returns what came of it, often an error.
type table map[string]func() any

var tables = map[string]table{
	"agent": ofAgent, "events": ofEvents, "failure": ofFailure, "health": ofHealth, "launch": ofLaunch, "logs": ofLogs,
	"metrics": ofMetrics, "policy": ofPolicy, "process": ofProcess, "rendezvous": ofRendezvous, "store": ofStore,
	"tcpstore": ofTCPStore, "timer": ofTimer,
}

const (
	never = time.Duration(math.MinInt64)
	ever  = time.Duration(math.MaxInt64)
)

var (
	quiet = slog.New(slog.DiscardHandler)
	bg    = context.Background()
	done  = func() context.Context {
		ctx, cancel := context.WithCancel(bg)
		cancel()
		return ctx
	}()
	huge = strings.Repeat("x", 1<<20)
)

func main() {
	process.GuardMain()
	process.Register("echo", func(_ context.Context, in []byte) ([]byte, error) { return in, nil })
	process.FuncMain()
	if len(os.Args) < 2 {
		for _, name := range slices.Sorted(maps.Keys(tables)) {
			for _, c := range slices.Sorted(maps.Keys(tables[name])) {
				fmt.Println(name + ": " + c)
			}
		}
		return
	}
	name, c, _ := strings.Cut(os.Args[1], ": ")
	fmt.Printf("ended: %.300s\n", fmt.Sprint(tables[name][c]()))
}

// all are several outcomes.
func all(outcomes ...any) any { return outcomes }

// after are the outcomes of calls, one after the other.
func after[T any](x T, err error, calls ...func(T) any) any {
	if err != nil {
		return err
	}
	var outcomes []any
	for _, call := range calls {
		outcomes = append(outcomes, call(x))
	}
	return outcomes
}

// two are the results of a call.
func two[T any](x T, err error) any { return all(x, err) }

func temp(name string) string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("bad-%d-%s", os.Getpid(), name))
}

func closedFile() *os.File {
	f, err := os.Open(os.DevNull)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		panic(err)
	}
	return f
}
