package warm

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/process"
)

// What is known of the programs that were not started for the longest time is forgotten.
func TestForgetOldest(t *testing.T) {
	dir := t.TempDir()
	open := func(i int) string {
		p := &program{target: fmt.Sprint(i), python: "python3"}
		return openMemory(dir, p, slog.New(slog.DiscardHandler)).dir
	}
	var dirs []string
	for i := range maxPrograms {
		path := open(i)
		at := time.Now().Add(time.Duration(i-maxPrograms) * time.Hour)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, path)
	}
	open(0) // is the last now
	dirs = append(dirs, open(maxPrograms))
	all, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(all) != maxPrograms {
		t.Errorf("%d programs are known, want %d; %v", len(all), maxPrograms, err)
	}
	for i, path := range dirs {
		if _, err := os.Stat(filepath.Join(path, jobFile)); (err != nil) != (i == 1) {
			t.Errorf("program %d: %v", i, err)
		}
	}
}

// A line may be long.
func TestLongLine(t *testing.T) {
	m := &memory{dir: t.TempDir()}
	for _, want := range [][]string{{strings.Repeat("x", 100_000), "", "the last"}, {""}} {
		if err := m.write(setsFile, want); err != nil {
			t.Fatal(err)
		}
		if got := m.read(setsFile); !slices.Equal(got, want) {
			t.Errorf("%d lines of %d", len(got), len(want))
		}
	}
}

// inside makes a Host for a script.
func inside(t *testing.T, body string) (*Host, *program) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skipf("needs Python: %v", err)
	}
	real, err := exec.Command(python, "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Skipf("needs Python: %v", err)
	}
	script := filepath.Join(t.TempDir(), "script.py")
	if err := os.WriteFile(script, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &program{python: strings.TrimSpace(string(real)), name: "python3", flags: []string{"-u"}, target: script, script: script, env: os.Environ(), varying: []string{"RANK"}}
	h := New(t.Context(), Config{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(h.Close)
	h.remember(p)
	return h, p
}

// A worker leads its session before anybody can signal it.
func TestLeads(t *testing.T) {
	h, p := inside(t, "")
	tmpl, err := h.make(p, false)
	if err != nil {
		t.Fatal(err)
	}
	defer tmpl.close()
	no := errors.New("no")
	img := process.Image{Path: p.python, Args: []string{"python3", "-u", p.script}, Env: p.env}
	err = tmpl.fork(img, func(pid int) error {
		if sid, err := unix.Getsid(pid); sid != pid {
			t.Errorf("process %d has the session %d, %v", pid, sid, err)
		}
		return no
	}, false)
	if err != no {
		t.Error(err)
	}
}

// Groups that follow each other quickly have one template made beside them, not one each.
func TestOneMaker(t *testing.T) {
	dir := t.TempDir()
	site, fifo, begun := filepath.Join(dir, "site-packages"), filepath.Join(dir, "fifo"), filepath.Join(dir, "begun")
	if err := errors.Join(os.Mkdir(site, 0o700), unix.Mkfifo(fifo, 0o600),
		os.WriteFile(filepath.Join(site, "slow.py"), []byte("with open('"+begun+"', 'a') as f:\n    f.write('x')\nopen('"+fifo+"').close()\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	h, p := inside(t, "")
	p.env = append(p.env, "PYTHONPATH="+site)
	if err := h.memory.write(modulesFile, []string{"slow"}); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { h.improve(t.Context(), p) })
	}
	gate, err := os.OpenFile(fifo, os.O_WRONLY, 0) // waits for a reader
	if err != nil {
		t.Fatal(err)
	}
	gate.Close()
	all.Wait()
	if text, err := os.ReadFile(begun); string(text) != "x" {
		t.Errorf("%d templates, %v; want one", len(text), err)
	}
}

// What is slow at the lowest priority may not have had its turn, and is not blamed.
func TestIdleIsSlow(t *testing.T) {
	if !canBeIdle() {
		t.Skip("needs the right to leave the lowest priority")
	}
	h, p := inside(t, "")
	h.cfg.ImportTimeout = 100 * time.Millisecond
	site := filepath.Join(t.TempDir(), "site-packages")
	if err := errors.Join(os.Mkdir(site, 0o700), os.WriteFile(filepath.Join(site, "slow.py"), []byte("import time\ntime.sleep(1000)\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	p.env = append(p.env, "PYTHONPATH="+site)
	if err := h.memory.write(modulesFile, []string{"slow"}); err != nil {
		t.Fatal(err)
	}
	if h.improve(t.Context(), p) || h.memory.isLeft("slow") || h.off {
		t.Errorf("left out %v, off %v", h.memory.out, h.off)
	}
}

// What was slow or failed is tried again after a day; what breaks a rule is not.
func TestTryAgain(t *testing.T) {
	h, p := inside(t, "")
	h.memory.leave("rule", "starts a thread", false)
	h.memory.leave("slow", "takes too long to import", true)
	reopened := func() *memory { return openMemory(h.cfg.Dir, p, h.log) }
	if m := reopened(); !m.isLeft("rule") || !m.isLeft("slow") {
		t.Errorf("left out: %v", m.out)
	}
	old := time.Now().Add(-2 * tryAgain).UTC().Format(time.RFC3339)
	if err := h.memory.write(leftFile, []string{"rule\tstarts a thread", "slow\ttakes too long to import\t" + old}); err != nil {
		t.Fatal(err)
	}
	if m := reopened(); !m.isLeft("rule") || m.isLeft("slow") {
		t.Errorf("left out after days: %v", m.out)
	}
}

// python - FILE runs what comes from stdin.
func TestSplit(t *testing.T) {
	for args, want := range map[string]int{"-u a.py": 2, "-u -X dev -m a b": 5, "-": 0, "-u - a.py": 0, "-i a.py": 0} {
		if n, err := split(strings.Fields(args)); n != want || (err != nil) != (want == 0) {
			t.Errorf("%s: %d, %v; want %d", args, n, err, want)
		}
	}
}
