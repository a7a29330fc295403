package children_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/host/children"
)

func TestChildren(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := children.Start(cmd); err != nil {
		t.Skip(err)
	}
	pid := cmd.Process.Pid
	if !children.Has(pid) {
		t.Errorf("a process that was started is not known")
	}
	in.Close()
	if err := children.Wait(cmd); err != nil || children.Has(pid) {
		t.Errorf("after Wait: %v, still known: %v", err, children.Has(pid))
	}
	if err := children.Start(exec.Command("/nowhere")); err == nil {
		t.Error("what is not there was started")
	}
}

// The end of what a command writes is kept, however much that is.
func TestOutput(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "cat")
	cmd.Stdin = strings.NewReader(strings.Repeat("x", 1<<20) + "the end")
	out, said, err := children.Output(cmd, 10)
	if string(out) != "xxxthe end" || len(said) != 0 || err != nil {
		t.Errorf("got %d bytes %.20q, %q, %v", len(out), out, said, err)
	}
}
