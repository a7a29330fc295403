package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/yuin/goldmark/ast"
)

// commands are the command lines of muster in a page's code.
func (p *page) commands() []string {
	var found []string
	_ = ast.Walk(p.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if n.Kind() != ast.KindCodeBlock && n.Kind() != ast.KindFencedCodeBlock || !entering {
			return ast.WalkContinue, nil
		}
		var code strings.Builder
		for i := range n.Lines().Len() {
			line := n.Lines().At(i)
			code.Write(line.Value(p.text))
		}
		for line := range strings.Lines(strings.ReplaceAll(code.String(), "\\\n", " ")) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " # ")
			line, _, _ = strings.Cut(strings.TrimPrefix(line, "bin/"), " 2>&1")
			if words := strings.Fields(line); len(words) > 1 && words[0] == "muster" && command.MatchString(words[1]) {
				found = append(found, line)
			}
		}
		return ast.WalkContinue, nil
	})
	return found
}

// command tells a command from output, whose lines may begin with muster's name.
var command = regexp.MustCompile(`^[a-z]+$`)

var flag = regexp.MustCompile(`(?:^| )(--?[a-z][a-z-]*)`)

// Every command line in the documentation is one that muster takes: that of a job is
// explained, without running it; of others the options are in the help.
func TestCommands(t *testing.T) {
	pages, err := read("../../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	muster := filepath.Join(dir, "muster")
	if out, err := exec.Command("go", "build", "-o", muster, "../../../cmd/muster").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, content := range map[string]string{"train.py": "", "worker.sh": "", "policy.yaml": "default: {action: retry}\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	help := map[string]string{}
	checked := 0
	for _, p := range pages {
		for _, line := range p.commands() {
			checked++
			words := strings.Fields(line)
			if words[1] == "run" || words[1] == "explain" {
				// By the shell, which knows what the quotes mean.
				explain := strings.Replace(line, "muster "+words[1], muster+" explain", 1)
				cmd := exec.Command("/bin/sh", "-c", explain)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "MUSTER_DEVICES=8")
				var said bytes.Buffer
				cmd.Stderr = &said
				if err := cmd.Run(); err != nil {
					t.Errorf("%s: %s: %v\n%s", p.source, line, err, said.Bytes())
				}
				continue
			}
			if help[words[1]] == "" {
				out, err := exec.Command(muster, "help", words[1]).Output()
				if err != nil {
					t.Errorf("%s: %s: there is no help: %v", p.source, line, err)
				}
				help[words[1]] = string(out) + " "
				if words[1] == "doctor" { // it takes the options of run
					out, _ = exec.Command(muster, "help", "run").Output()
					help["doctor"] += string(out)
				}
			}
			for _, m := range flag.FindAllStringSubmatch(line, -1) {
				if !regexp.MustCompile(regexp.QuoteMeta(m[1]) + `\b`).MatchString(help[words[1]]) {
					t.Errorf("%s: %s: the help of %s does not know %s", p.source, line, words[1], m[1])
				}
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d commands were found", checked)
	}
}
