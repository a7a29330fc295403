package cli

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/runline"
	"github.com/muster-run/muster/launch"
)

// shell returns the shell's path or skips the test.
func shell(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("needs %s", name)
	}
	return path
}

// completionFile writes the completion script for a program.
func completionFile(t *testing.T, shell, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "_"+name)
	if err := os.WriteFile(path, []byte(completionScript(shell, name)), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// allOptions are the long options as completed.
func allOptions() []string {
	var names []string
	for _, o := range runline.Describe() {
		names = append(names, "--"+o.Name)
	}
	return names
}

// bashOffers has bash complete the last word, and returns what it offers, one in a line. kind
// is its COMP_TYPE.
func bashOffers(t *testing.T, kind string, words ...string) string {
	t.Helper()
	cmd := exec.Command(shell(t, "bash"), append([]string{"--norc", "--noprofile", "-c", fmt.Sprintf(`set -u; source "$1"; shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
complete -p %[1]s >/dev/null
_%[1]s
printf '%%s\n' "${COMPREPLY[@]-}"`, words[0]), "bash", completionFile(t, "bash", words[0])}, words...)...)
	cmd.Env = append(os.Environ(), "COMP_TYPE="+kind, "COLUMNS=80")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// What bash lists says what the words mean; what it inserts does not.
func TestBashDescribes(t *testing.T) {
	const list = "63"
	for _, tt := range []struct{ line, want string }{
		{"muster|s", `stop    stop a job on all its hosts
signal  send a signal to a job's workers
store   serve a TCPStore, or the rendezvous of jobs
`},
		{"muster|sto", `stop   stop a job on all its hosts
store  serve a TCPStore, or the rendezvous of jobs
`},
		{"muster|stor", "store\n"},
		{"muster|help|re", `restart  start a job's workers again
report   show how a job went and why it failed, from its log directory
`},
		{"muster|policy|", "check\n"},
		{"muster|run|--tee|", `0  none
1  stdout
2  stderr
3  both
`},
		{"torchrun|--rdzv-backend|", `static  the host of rank 0 is named; as torchrun, the default
c10d    one host serves it; torchrun's agents can join
etcd    an etcd cluster; survives the loss of any host
quorum  some hosts elect who serves it; survives the loss of any host
`},
		{"muster|version|--", `--json  print an object with version, commit, date, modified, go, os, arch, to
--help  print this help
`},
		{"muster|completion|", "bash\nzsh\ntcsh\n"},
	} {
		t.Run(tt.line, func(t *testing.T) {
			if got := bashOffers(t, list, strings.Split(tt.line, "|")...); got != tt.want {
				t.Errorf("lists\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

// Every shell is offered every option of every command, as the tables have them.
func TestEveryOptionIsOffered(t *testing.T) {
	zsh, tcsh := completionScript("zsh", "muster"), completionScript("tcsh", "muster")
	for _, c := range subcommands() {
		var want []string
		for _, o := range c.options() {
			want = append(want, spellings(&o, false)...)
		}
		slices.Sort(want)
		_, ofZsh, _ := strings.Cut(zsh, "    "+c.name+") ")
		ofZsh, _, _ = strings.Cut(ofZsh, ";;")
		for _, s := range want {
			if !strings.Contains(ofZsh, "'"+s+"[") && !strings.Contains(ofZsh, "'"+s+"=[") && !strings.Contains(ofZsh, "'"+s+"+[") {
				t.Errorf("zsh: %s has no %s", c.name, s)
			}
			if long, ok := strings.CutPrefix(s, "--"); ok && !strings.Contains(strings.NewReplacer("(", " ", ")", " ").Replace(tcsh), " "+long+" ") {
				t.Errorf("tcsh: no %s", long)
			}
		}
		t.Run("bash "+c.name, func(t *testing.T) {
			got := strings.Fields(bashOffers(t, "", "muster", c.name, "-"))
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("offers %q, want %q", got, want)
			}
		})
	}
}

func TestBashCompletes(t *testing.T) {
	tests := []struct {
		line string // '|' separates words as bash separates them; the last is being typed
		want string
	}{
		{"muster|", strings.Join(names(subcommands()), " ")},
		{"muster|stor", "store"},
		{"muster|completion|z", "zsh"},
		{"muster|store|--", "--host --port --allow --token-file --cacert --cert --key --help"},
		{"muster|store|--port|0|--a", "--allow"},
		{"muster|store|--token_", ""}, // only run's options may have underscores
		{"muster|logs|-", "--rank --local-rank --attempt --stream --follow -f --lines -n --prefix --collapse --help -h"},
		{"muster|logs|dir|--fo", "--follow"},
		{"muster|logs|-n|", ""},
		{"muster|policy|", "check"},
		{"muster|help|pol", "policy"},
		{"muster|signal|U", "USR1 USR2"},
		{"muster|help|help|", ""},
		{"muster|doctor|--", strings.Join(allOptions(), " ") + " --json --wait"},
		{"muster|doctor|--wait|5|--rdzv-backend|q", "quorum"},
		{"muster|explain|--rdzv_b", "--rdzv_backend"},
		{"muster|explain|train.py|--rd", ""},
		{"muster|version|--", "--json --help"},
		{"muster|dance|-", ""},
		{"muster|run|--nn", "--nnodes"},
		{"muster|run|--", strings.Join(allOptions(), " ")},
		{"torchrun|--rdzv-b", "--rdzv-backend"},
		{"torchrun|--rdzv_b", "--rdzv_backend"},
		{"torchrun|-n", ""},
		{"torchrun|-", strings.NewReplacer("--module", "--module -m", "--redirects", "--redirects -r", "--tee", "--tee -t", "--helper", "--helper", "--help", "--help -h", "--verbose", "--verbose -v", "--quiet", "--quiet -q").Replace(strings.Join(allOptions(), " "))},
		{"torchrun|--rdzv-backend|", "static c10d etcd quorum"},
		{"torchrun|--rdzv_backend|c", "c10d"},
		{"torchrun|--numa-binding|=|ex", "exclusive"},
		{"torchrun|--numa-binding|=", "node socket exclusive core-complex"},
		{"torchrun|--tee|3|--nproc-per-node|", "auto cpu gpu xpu"},
		{"torchrun|--tee|=|3|--nproc-per-node|g", "gpu"},
		{"torchrun|-t|", "0 1 2 3"},
		{"torchrun|-m|--sta", "--standalone --start-method"},
		{"torchrun|--nnodes|", ""},
		{"torchrun|train.py|--nn", ""},
		{"torchrun|--standalone|train.py|--tee|", ""},
		{"torchrun|--|--nn", ""},
		{"torchrun|", ""}, // a script: bash completes files
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			words := strings.Split(tt.line, "|")
			out := bashOffers(t, "", words...)
			got, want := strings.Fields(out), strings.Fields(tt.want)
			if !slices.Equal(got, want) {
				t.Errorf("completes to %q, want %q", got, want)
			}
		})
	}
}

// tcsh takes the rules; it cannot be asked to complete without a terminal.
func TestTcshTakesTheRules(t *testing.T) {
	tcsh := shell(t, "tcsh")
	for _, name := range []string{"muster", "torchrun"} {
		out, err := exec.Command(tcsh, "-f", "-c", "source "+completionFile(t, "tcsh", name)+"; complete "+name).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "n/--rdzv-backend/(static c10d etcd quorum)/") {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

// zsh completes in a pseudo-terminal of its own.
func TestZshCompletes(t *testing.T) {
	zsh := shell(t, "zsh")
	for _, tt := range []struct {
		line string
		want []string // what is offered, or what the line becomes
	}{
		{"muster stor", []string{"muster store"}},
		{"torchrun --nno", []string{"torchrun --nnodes="}},
		{"muster run --nno", []string{"muster run --nnodes="}},
		{"muster ", []string{"run", "serve a TCPStore"}},
		{"muster store --tok", []string{"muster store --token-file="}},
		{"muster top --", []string{"--once", "--all"}},
		{"muster policy c", []string{"muster policy check"}},
		{"muster help po", []string{"muster help policy"}},
		{"muster doctor --wa", []string{"muster doctor --wait="}},
		{"torchrun --rdzv-backend c1", []string{"torchrun --rdzv-backend c10d"}},
		{"muster run --rdzv-backend ", []string{"etcd", "an etcd cluster; survives the loss of any host"}},
		{"muster help sto", []string{"stop", "serve a TCPStore, or the rendezvous of jobs"}},
		{"torchrun --numa_binding=ex", []string{"torchrun --numa_binding=exclusive"}},
		{"torchrun --nproc-per-node ", []string{"auto", "cpu", "gpu", "xpu"}},
	} {
		t.Run(tt.line, func(t *testing.T) {
			name, _, _ := strings.Cut(tt.line, " ")
			cmd := exec.Command(zsh, "-f", "-c", `
zmodload zsh/zpty
zpty z zsh -f -i
# Keys sent before the line editor runs would go to the terminal's own.
zpty -w z "PS1=; autoload -Uz compinit && compinit -u -D; zstyle ':completion:*' insert-tab false; source $1; cd $3"
zpty -w z 'zle-line-init() { print "rea""dy" }; shown() { print -r -- "sho""wn<$BUFFER>" }; zle -N zle-line-init; zle -N shown; bindkey "^X" shown'
zpty -r z ignored '*ready*'
zpty -n -w z "$2"$'\t\t\x18'
zpty -r z shown '*shown<*>*'
print -r -- $shown`, "zsh", completionFile(t, "zsh", name), tt.line, t.TempDir())
			cmd.Env = append(os.Environ(), "TERM=dumb", "HOME="+t.TempDir())
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for _, want := range tt.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("no %q in %q", want, out)
				}
			}
		})
	}
}

func TestCompletionCommands(t *testing.T) {
	for _, sh := range runline.Shells {
		for _, name := range []string{"muster", runline.Torchrun} {
			script := completionScript(sh, name)
			if !strings.Contains(script, name) || strings.Contains(script, "%!") {
				t.Errorf("%s for %s:\n%s", sh, name, script)
			}
		}
	}
}

// Completion offers every option that a command takes, and no other: the command's
// usage, from which it offers them, agrees with its code.
func TestOptionsOfCommands(t *testing.T) {
	for _, c := range subcommands() {
		t.Run(c.name, func(t *testing.T) {
			var offered []string
			for _, o := range usageOptions(c.usage) {
				if o.Help == "" {
					t.Errorf("--%s has no description", o.Name)
				}
				offered = append(offered, strings.TrimPrefix(o.Name, "-"))
				if o.Short != 0 {
					offered = append(offered, string(o.Short))
				}
			}
			if c.do == nil {
				return
			}
			args := []string{"--help"}
			if c.name == "policy" {
				args = []string{"check", "--help"}
			}
			asked := &command.Command{FlagSet: flag.NewFlagSet("", flag.ContinueOnError)}
			asked.SetOutput(io.Discard)
			if err := c.do(t.Context(), asked, args); err == nil {
				t.Fatal("--help is taken")
			}
			var taken []string
			asked.VisitAll(func(f *flag.Flag) { taken = append(taken, f.Name) })
			slices.Sort(offered)
			slices.Sort(taken)
			if !slices.Equal(offered, taken) {
				t.Errorf("offers %q, takes %q", offered, taken)
			}
		})
	}
}

// Completion offers the backends that muster knows.
func TestBackendsOffered(t *testing.T) {
	var offered []string
	for _, w := range words(&runline.Described{Name: "rdzv-backend"}) {
		if offered = append(offered, w.name); w.what == "" {
			t.Errorf("%s has no description", w.name)
		}
	}
	_, err := launch.Resolve(launch.Config{Workers: launch.Workers{Entrypoint: "true"}, Rendezvous: launch.Rendezvous{Backend: "pigeon"}})
	if want := strings.Join(offered[:3], ", ") + " or " + offered[3]; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("offers %q; muster: %v", offered, err)
	}
}
