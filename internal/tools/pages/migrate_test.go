package pages

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/pypeer"
)

// An option is a row of cmd/muster/internal/runline's table.
type option struct {
	name, env string
	own       bool // muster's, not torchrun's
}

// readOptions reads the table in cmd/muster/internal/runline/flags.go.
func readOptions(t *testing.T) []option {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), "../../../cmd/muster/internal/runline/flags.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var found []option
	ast.Inspect(tree, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || v.Names[0].Name != "options" {
			return true
		}
		for _, row := range v.Values[0].(*ast.CompositeLit).Elts {
			o := option{}
			for _, field := range row.(*ast.CompositeLit).Elts {
				kv := field.(*ast.KeyValueExpr)
				switch kv.Key.(*ast.Ident).Name {
				case "name":
					o.name, _ = joined(kv.Value)
				case "env":
					o.env, _ = joined(kv.Value)
				case "own":
					o.own = true
				}
			}
			found = append(found, o)
		}
		return false
	})
	if len(found) < 40 {
		t.Fatalf("only %d options in cmd/muster/internal/runline/flags.go", len(found))
	}
	return found
}

// Each option has a row in docs/migrate.md and nothing else has; each that muster adds is
// on docs/differences.md, too. cmd/muster/internal/runline's tests compare the options with PyTorch's.
func TestOptions(t *testing.T) {
	rows := codeSpans(readPage(t, "migrate.md"), true)
	added := codeSpans(readPage(t, "differences.md"), false)
	names := map[string]bool{}
	for _, o := range readOptions(t) {
		names["--"+o.name] = true
		if !slices.Contains(rows, "--"+o.name) {
			t.Errorf("docs/migrate.md has no row for --%s", o.name)
		}
		if o.own && !slices.Contains(added, "--"+o.name) {
			t.Errorf("docs/differences.md does not have --%s among what is added", o.name)
		}
		want := "MUSTER_" + strings.ToUpper(strings.ReplaceAll(o.name, "-", "_"))
		if slices.Contains([]string{"title", "env", "dry-run", "version"}, o.name) {
			want = ""
		}
		if o.own && o.env != want {
			t.Errorf("docs/migrate.md says that the variable of --%s is %q, but it is %q", o.name, want, o.env)
		}
	}
	for _, span := range rows {
		if strings.HasPrefix(span, "--") && !names[span] {
			t.Errorf("docs/migrate.md has a row for %s, which is not an option", span)
		}
	}
}

var (
	variable = regexp.MustCompile(`^(?:TORCH|TORCHELASTIC|PET|MUSTER|OMP_NUM|NCCL|CUDA|HIP|ROCR|PYTHON|GLOO|VIRTUAL|CONDA|MASTER|(?:ROLE|GROUP|LOCAL)_(?:RANK|NAME|WORLD))[A-Z_]*_[A-Z_]+$|^RANK$|^WORLD_SIZE$|^LOGLEVEL$|^(?:ROLE|GROUP|LOCAL)_(?:RANK|NAME|WORLD_SIZE)$`)

	// What PyTorch reads of the environment, or writes into a worker's.
	torchVariable = regexp.MustCompile(`["'](TORCHELASTIC_[A-Z_]+|TORCH_ELASTIC_[A-Z_]+|TORCH_DISABLE_SHARE[A-Z_]+|TORCH_NCCL_ASYNC[A-Z_]+|PYTHON_EXEC|OMP_NUM_THREADS|LOGLEVEL|[A-Z]+_WORLD_SIZE|[A-Z]+_RANK|MASTER_ADDR|MASTER_PORT)["']`)
)

// The beginnings of names.
var exemptVariables = []string{"MUSTER_", "PET_"}

// What only torch's own tests, the Python package or the devices' drivers read.
var otherVariables = []string{"TORCHELASTIC_ETCD_BINARY_PATH", "MUSTER_BINARY", "CUDA_DEVICE_ORDER"}

// Each variable that muster reads or sets, and each that torchrun does, is on
// docs/reference/environment.md.
func TestVariables(t *testing.T) {
	spans := strings.Join(codeSpans(readPage(t, "reference/environment.md"), false), " ")
	named := map[string]bool{}
	for _, word := range strings.Fields(spans) {
		named[strings.TrimSuffix(word, "…")] = true
	}
	has := func(name string) bool { return named[name] || slices.Contains(exemptVariables, name) }
	used := map[string]bool{}
	for _, o := range readOptions(t) {
		used[o.env] = true
	}
	checked := 0
	for _, text := range readModule(t).texts {
		if name := strings.TrimSuffix(text, "="); variable.MatchString(name) {
			used[name] = true
			if checked++; !has(name) {
				t.Errorf("docs/reference/environment.md lacks %s, which muster uses", name)
			}
		}
	}
	if checked < 40 {
		t.Errorf("only %d names of variables were found in the code", checked)
	}
	torchs := variablesOfTorchrun(t)
	for name := range named {
		if variable.MatchString(name) && !used[name] && len(torchs) > 0 && !torchs[name] && !slices.Contains(otherVariables, name) {
			t.Errorf("docs/reference/environment.md has %s, which nobody uses", name)
		}
	}
	for name := range torchs {
		if !has(name) {
			t.Errorf("docs/reference/environment.md lacks %s, which torchrun uses", name)
		}
	}
}

// variablesOfTorchrun reads the sources of the PyTorch at hand, none if there is none.
func variablesOfTorchrun(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	t.Run("torchrun", func(t *testing.T) {
		out, err := exec.Command(pypeer.Python(t), "-c",
			`import importlib.util, os; print(os.path.dirname(importlib.util.find_spec("torch").origin))`).Output()
		if err != nil {
			t.Fatal(err)
		}
		root := filepath.Join(strings.TrimSpace(string(out)), "distributed")
		var files []string
		for _, pattern := range []string{"run.py", "launcher/*.py", "elastic/*/*.py", "elastic/*/*/*.py"} {
			list, _ := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
			files = append(files, list...)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range torchVariable.FindAllSubmatch(content, -1) {
				found[string(m[1])] = true
			}
		}
		if len(found) < 20 {
			t.Errorf("only %d variables in %s files of %s", len(found), strconv.Itoa(len(files)), root)
		}
	})
	return found
}

// docs/reference/rdzv-conf.md has each key of --rdzv-conf, with the backends that read it.
func TestRdzvConf(t *testing.T) {
	source, err := os.ReadFile(root + "/rendezvous/settings.go")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\t\{"(\w+)", "([\w ]*)", `).FindAllSubmatch(source, -1) {
		want[string(m[1])] = cmp.Or(string(m[2]), "all")
	}
	got := map[string]string{}
	for _, r := range readTables(readPage(t, "reference/rdzv-conf.md"))["Keys of --rdzv-conf"] {
		for _, name := range r.first {
			got[name] = r.cells[1]
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" || len(want) < 20 {
		t.Errorf("docs/reference/rdzv-conf.md (-code +page)\n%s", diff)
	}
}
