//go:build linux

package doctest

import (
	"slices"
	"strings"
	"testing"
)

// plays are the pages whose commands are run here, each on so many hosts.
var plays = map[string]struct {
	hosts  int
	follow func(*play)
}{
	"README.md":               {5, readme},
	"docs/after-a-failure.md": {1, afterAFailure},
	"docs/decisions.md":       {1, func(p *play) { p.run("muster run train.py").exits(0) }},
	"docs/doctor.md":          {3, doctor},
	"docs/drills.md":          {2, drills},
	"docs/frameworks.md":      {1, func(p *play) { p.run("muster run --nproc-per-node 8 train.py").exits(0) }},
	"docs/handbook.md":        {1, func(*play) {}},
	"docs/hangs.md":           {1, hangs},
	"docs/kubernetes.md":      {2, kubernetes},
	"docs/live.md":            {2, live},
	"docs/logs.md":            {1, logs},
	"docs/many-hosts.md":      {5, manyHosts},
	"docs/migrate.md":         {2, migrate},
	"docs/observe.md":         {2, observe},
	"docs/production.md":      {3, production},
	"docs/quickstart.md":      {1, quickstart},
	"docs/restart-policy.md":  {2, restartPolicy},
	"docs/security.md":        {2, security},
	"docs/slurm.md":           {0, slurm},
	"docs/troubleshooting.md": {2, troubleshooting},
	"docs/tutorial.md":        {1, tutorial},
	"docs/warm.md": {1, func(p *play) {
		p.run("muster run --warm --nproc-per-node 8 --max-restarts 3 train.py").exits(0)
	}},
}

// scripts are the pages whose blocks of sh are run, in one go, by another test.
var scripts = map[string]string{
	"docs/install.md":        "TestDocumentation in test/wheeltest",
	"docs/python.md":         "TestDocumentation in test/wheeltest",
	"docs/restart-policy.md": "TestPolicyDocumentation",
}

// excuses are the commands that are not run here, with the reason.
var excuses = []struct{ page, line, why string }{
	{"README.md", "make demo    # two workers train, one is killed, training continues", "makes a virtual environment; the command that it runs is below it on the page, and is run"},
	{"README.md", "make test    # all tests, with real PyTorch as the judge: 7 minutes on two cores, 15 the first time", "runs this test"},
	{"README.md", demo, "TestDemo runs it, where PyTorch is"},
	{"docs/frameworks.md", "muster run --nproc-per-node 2 examples/frameworks/with_accelerate.py", installed},
	{"docs/frameworks.md", "muster run --nproc-per-node 2 examples/frameworks/with_lightning.py", installed},
	{"docs/frameworks.md", "muster run --nproc-per-node 2 --max-restarts 1 examples/frameworks/with_transformers.py out", installed},
	{"docs/frameworks.md", "muster run --nproc-per-node 2 examples/frameworks/with_deepspeed.py", installed},
	{"docs/quickstart.md", "make build", "the tests build what they run"},
}

const installed = "needs a framework that the tests do not install; the page says when it was run, and with which version"

// elsewhere reports whether a command of a page is excused, or in a script.
func elsewhere(p *Page, line string) bool {
	for _, e := range excuses {
		if e.page == p.Name && e.line == line {
			return true
		}
	}
	return scripts[p.Name] != "" && slices.ContainsFunc(p.Scripts(), func(s Script) bool { return strings.Contains(s.Text, line) })
}

func migrate(p *play) {
	p.do(outside, "python3 -m venv --without-pip venv").exits(0)
	p.run("muster adopt", "VIRTUAL_ENV="+p.dir+"/venv").exits(0).says(1, "/venv is adopted: its torchrun, ")
}

// The commands of the documentation, verbatim.
func TestPages(t *testing.T) {
	for name, this := range plays {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlay(t, name, this.hosts)
			this.follow(p)
			p.end()
		})
	}
}

// Every command is on a page that is followed here, or is run elsewhere, or there is a
// reason why not; and that is so of no other.
func TestNoneIsForgotten(t *testing.T) {
	pages, err := ReadAll(root)
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, p := range pages {
		for _, c := range p.Commands() {
			there[p.Name+c.Line] = true
			if _, played := plays[p.Name]; !played && !elsewhere(p, c.Line) {
				t.Errorf("%s:%d: %s: is not run by a test", p.Name, c.At, c.Line)
			}
		}
	}
	for _, e := range excuses {
		if !there[e.page+e.line] {
			t.Errorf("%s has no command %q any more, which need not be run", e.page, e.line)
		}
	}
	for name := range scripts {
		if !slices.ContainsFunc(pages, func(p *Page) bool { return p.Name == name && len(p.Scripts()) > 0 }) {
			t.Errorf("%s has no scripts", name)
		}
	}
}
