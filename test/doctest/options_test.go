//go:build linux

package doctest

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// strangers are options that the pages name and muster does not know.
var strangers = map[string]string{
	"--max_restarts":  "accelerate's",
	"--no-deps":       "pip's",
	"--cpus-per-task": "srun's",
	"--gpus-per-node": "sbatch's",
	"--shm-size":      "docker's",
	"--signal":        "sbatch's",
	"--use-env":       "of torch.distributed.launch",
}

var (
	option  = regexp.MustCompile(`(?:^|[ |[/])(--[a-z][a-z0-9_-]*)`)
	program = regexp.MustCompile(`^[a-z-]+ `)
)

// Every option that is named within the text of a page is in muster's help, unless
// it is another program's.
func TestOptions(t *testing.T) {
	pages, err := ReadAll(root)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, name := range []string{"run", "doctor", "report", "logs", "bundle", "top", "dump", "ps", "stop", "restart", "signal", "store", "policy", "adopt"} {
		help, err := exec.Command(filepath.Join(bin, "muster"), "help", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range option.FindAllStringSubmatch(strings.ReplaceAll(string(help), "\n", " "), -1) {
			known[m[1]] = true
		}
	}
	met := map[string]bool{}
	for _, p := range pages {
		for _, span := range p.Spans {
			if program.MatchString(span) && !strings.HasPrefix(span, "muster ") {
				continue
			}
			for _, m := range option.FindAllStringSubmatch(span, -1) {
				met[m[1]] = true
				if !known[m[1]] && strangers[m[1]] == "" {
					t.Errorf("%s: %s: the help does not know %s", p.Name, span, m[1])
				}
			}
		}
	}
	for name, why := range strangers {
		if !met[name] || known[name] {
			t.Errorf("%s need not be among the strangers (%s)", name, why)
		}
	}
	if len(met) < 50 {
		t.Errorf("only %d options were found", len(met))
	}
}
