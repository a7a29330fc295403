//go:build linux

package logs_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/test/testproc"
)

// childEnv makes the test binary a worker that does what the variable says.
const childEnv = "MUSTER_LOGS_CHILD"

func TestMain(m *testing.M) {
	testproc.Prepare()
	if what := os.Getenv(childEnv); what != "" {
		if err := childMain(strings.Fields(what)); err != nil {
			fmt.Fprintln(os.Stdin, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// childMain is a worker. It begins when its stdin, a pipe, is closed, except
// for echo.
func childMain(args []string) error {
	if args[0] == "echo" { // copies stdin to stdout as it comes
		_, err := io.Copy(struct{ io.Writer }{os.Stdout}, struct{ io.Reader }{os.Stdin})
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	number := func(i int) int {
		n, err := strconv.Atoi(args[i])
		if err != nil {
			panic(err)
		}
		return n
	}
	switch args[0] {
	case "flood": // lines, bytes a line, bytes a write: to stdout and stderr in turn
		return flood(number(1), number(2), number(3))
	case "say": // what follows, unquoted: stdout, stderr
		for i, f := range []*os.File{os.Stdout, os.Stderr} {
			text, err := strconv.Unquote(args[1+i])
			if err != nil {
				return err
			}
			if _, err := f.WriteString(text); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("unknown child %q", args)
}

// flood writes numbered lines, every other buffer to stderr.
func flood(lines, size, buffer int) error {
	out := [2]*bufio.Writer{bufio.NewWriterSize(os.Stdout, buffer), bufio.NewWriterSize(os.Stderr, buffer)}
	filler := bytes.Repeat([]byte{'x'}, size)
	line := make([]byte, 0, size+20)
	for i := range lines {
		w := out[i*size/buffer%2]
		line = strconv.AppendInt(line[:0], int64(i), 10)
		line = append(line, ' ')
		line = append(line, filler[:max(size-len(line)-1, 0)]...)
		line = append(line, '\n')
		if _, err := w.Write(line); err != nil {
			return err
		}
	}
	for _, w := range out {
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// startChild starts a worker that waits for the returned function.
func startChild(t testing.TB, stdout, stderr *os.File, what ...string) (begin func(), cmd *exec.Cmd) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+strings.Join(what, " "))
	cmd.Stdout, cmd.Stderr = stdout, stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() { stdin.Close() }, cmd
}
