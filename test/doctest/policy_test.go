//go:build linux

package doctest

import (
	"os"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/policy"
)

// The commands of docs/restart-policy.md, verbatim, and what they say they print.
func TestPolicyDocumentation(t *testing.T) {
	page, err := Read(root, "docs/restart-policy.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(root+"/examples")); err != nil {
		t.Fatal(err)
	}
	for _, b := range page.Blocks {
		if b.Kind == "yaml" {
			if _, err := policy.Parse([]byte(b.Text), "the document's"); err != nil {
				t.Error(err)
			}
		}
	}
	compared := 0
	for _, script := range page.Scripts() {
		cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", script.Text)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "TZ=UTC", "MUSTER_DEVICES=0", "PATH="+bin+":"+os.Getenv("PATH"))
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%s: %v", script.Text, err)
		}
		if !script.Compared {
			continue
		}
		compared++
		if diff := cmp.Diff(script.Output, string(out)); diff != "" {
			t.Errorf("-documented +got:\n%s", diff)
		}
	}
	if n := len(page.Scripts()); n < 3 || compared < 3 {
		t.Errorf("%d commands and %d outputs", n, compared)
	}
}
