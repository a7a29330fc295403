//go:build linux

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// `muster run … 2>&1 | cat`: what a worker writes to stdout and stderr in turn
// comes out in turn, as if there were no launcher between.
func TestStreamsStayInTurn(t *testing.T) {
	t.Parallel()
	var steps []string
	var want strings.Builder
	for i := range 100 {
		steps = append(steps, fmt.Sprintf(`print:out %d\n`, i), fmt.Sprintf(`error:%d of 100\r`, i))
		fmt.Fprintf(&want, "out %d\n%d of 100\r", i, i)
	}
	r, w := pipe(t)
	all := collect(r)
	j := workers(t, muster(t), setup{stdout: w, stderr: w}, "--standalone --quiet", append(steps, "exit:0")...)
	w.Close()
	j.want(0)
	if got := all(); got != want.String() {
		t.Errorf("the console got %.300q", got)
	}
}

// A console that nobody reads does not hold up the end that a signal asks for.
func TestStuckConsoleHoldsNothingUp(t *testing.T) {
	t.Parallel()
	full := strings.Repeat("x", 4095) + `\n`
	var steps []string
	for range 64 { // four times what the pipe holds
		steps = append(steps, "print:"+full)
	}
	for _, tt := range []struct {
		name, flags string
		steps       []string
	}{
		{"tee", "-t 3", append(slices.Clip(steps), "ready", "hang")},
		{"inherited", "", append([]string{"ready"}, append(slices.Clip(steps), "hang")...)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, w := pipe(t)
			j := workers(t, muster(t), setup{stdout: w, stderr: w}, "--standalone --shutdown-timeout 1 "+tt.flags, tt.steps...)
			w.Close()
			j.await("ready 0")
			awaitFull(t, r)
			j.signal(syscall.SIGTERM)
			j.want(1).noneLeft(0)
		})
	}
}

// awaitFull waits until a pipe takes hardly more.
func awaitFull(t *testing.T, r *os.File) {
	t.Helper()
	for late := time.Now().Add(patience); ; {
		held, err := unix.IoctlGetInt(int(r.Fd()), unix.TIOCINQ)
		if err != nil {
			t.Fatal(err)
		}
		if held > 40<<10 { // the rest are remainders of pages
			return
		}
		<-time.After(time.Millisecond) // nothing tells of it
		if time.Now().After(late) {
			t.Fatalf("the pipe holds %d bytes", held)
		}
	}
}
