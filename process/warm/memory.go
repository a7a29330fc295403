package warm

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/job/witness"
)

// A memory is what is learnt of one program: a directory with the files below, each of lines.
// Without a directory it forgets everything at the end.
//
// Workers, and other jobs that run the same program, write there at the same time. So a file is replaced
// as a whole (write) and the last one counts. What is wrong in it makes a template import too much or too
// little, and no more: the template checks each import itself.
type memory struct {
	dir string
	log *slog.Logger

	mu   sync.Mutex      // guards the rest, and is held while that is written: the file has the last of it
	out  map[string]left // modules that are left out
	last time.Duration   // what the last template took
}

// A left is why a module is left out, and since when, where another time may be different.
type left struct {
	why   string
	since time.Time // zero: for good
}

// tryAgain is when a module is imported again that was slow or failed.
const tryAgain = 24 * time.Hour

const (
	jobFile     = "job"     // what it is about; with other content all is forgotten
	modulesFile = "modules" // what a worker had imported, in order; written by workers
	ownFile     = "own"     // the modules of a worker that are not installed
	setsFile    = "sets"    // variables that a worker has set
	leftFile    = "left"    // module, tab, why it is not imported by a template; perhaps tab, since when
	stampsFile  = "stamps"  // size, time and path of the program's own modules, and of the directories of others
	killedFile  = "killed"  // the module at whose import a template was killed
	tookFile    = "took"    // seconds that the last template took
)

// Bounds of what is believed.
const (
	maxMemory   = 4 << 20
	maxModules  = 20_000
	maxPrograms = 200
)

var moduleName = regexp.MustCompile(`^[\pL_][\pL\pN_]*(\.[\pL\pN_]+)*$`)

// openMemory finds what is known of a program, and forgets it if the script, the interpreter, the
// program's own modules or the installed packages have changed since.
func openMemory(dir string, p *program, log *slog.Logger) *memory {
	m := &memory{log: log, out: map[string]left{}}
	var err error
	if dir == "" {
		dir, err = os.UserCacheDir()
		dir = filepath.Join(dir, "muster", "warm")
	}
	if err == nil {
		key, job := p.identity()
		dir = filepath.Join(dir, key)
		if err = os.MkdirAll(dir, 0o700); err == nil {
			err = check(dir)
		}
		m.dir = dir
		if lines := m.read(jobFile); err == nil && (!slices.Equal(lines, job) || m.isOld()) {
			for _, name := range []string{modulesFile, ownFile, setsFile, leftFile, stampsFile, killedFile, tookFile} {
				_ = os.Remove(filepath.Join(dir, name))
			}
			err = m.write(jobFile, job)
			forgetOldest(filepath.Dir(dir), dir)
		}
		now := time.Now()
		_ = os.Chtimes(dir, now, now) // forgetOldest goes by this
	}
	if err != nil {
		m.dir = ""
		log.Warn("cannot save what warm starts learn", "error", err)
		return m
	}
	m.recall()
	return m
}

// forgetOldest removes what is known of those programs that were not started for the longest time,
// if it is of too many.
func forgetOldest(dir, but string) {
	all, err := os.ReadDir(dir)
	if err != nil || len(all) <= maxPrograms {
		return
	}
	started := map[string]time.Time{}
	for _, entry := range all {
		if info, err := entry.Info(); err == nil && info.IsDir() {
			started[filepath.Join(dir, entry.Name())] = info.ModTime()
		}
	}
	delete(started, but)
	oldest := slices.SortedFunc(maps.Keys(started), func(a, b string) int { return started[a].Compare(started[b]) })
	for _, path := range oldest[:max(0, len(oldest)-(maxPrograms-1))] {
		_ = os.RemoveAll(path)
	}
}

// recall reads what a memory keeps, except for the modules.
func (m *memory) recall() {
	for _, line := range m.read(leftFile) {
		name, why, ok := strings.Cut(line, "\t")
		why, at, passes := strings.Cut(why, "\t")
		since, _ := time.Parse(time.RFC3339, at)
		if ok && moduleName.MatchString(name) && !(passes && time.Since(since) > tryAgain) {
			m.out[name] = left{why, since}
		}
	}
	if lines := m.read(tookFile); len(lines) == 1 {
		seconds, _ := strconv.ParseFloat(lines[0], 64)
		m.last = time.Duration(min(max(seconds, 0), 3600) * float64(time.Second))
	}
}

// isOld reports whether a module of the program's own, or what is installed, has changed.
func (m *memory) isOld() bool {
	for _, line := range m.read(stampsFile) {
		size, rest, _ := strings.Cut(line, " ")
		at, path, _ := strings.Cut(rest, " ")
		if now := fileStamp(path); now != "none" && now != size+" "+at {
			return true
		}
	}
	return false
}

// check refuses a directory in which another user can write.
func check(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || info.Mode().Perm()&0o022 != 0 || !ok || int(owner.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is not a directory that only this user can change", dir)
	}
	return nil
}

// identity is the name of what is known of a program, and what it has to be about.
func (p *program) identity() (key string, job []string) {
	target, stamp, code := p.target, "", p.function
	switch {
	case p.how == "-c":
		code = p.target
		target = "-c " + strings.Join(strings.Fields(fmt.Sprintf("%.60s", code)), " ")
	case code != "":
		target = "function " + code
	}
	if p.script != "" {
		target = p.script
		if abs, err := filepath.Abs(target); err == nil {
			target = abs
		}
		stamp = fileStamp(target)
	}
	job = []string{"script " + target, "stamp " + stamp, "python " + p.python, "stamp " + fileStamp(p.python)}
	hash := sha256.New()
	fmt.Fprintf(hash, "%q %q %q %q", target, code, p.python, p.flags)
	for _, entry := range p.env {
		switch name, value, _ := strings.Cut(entry, "="); name {
		case "PYTHONPATH":
			if value = witness.Without(value); value != "" {
				fmt.Fprintf(hash, " %q", name+"="+value)
			}
		case "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONNOUSERSITE":
			fmt.Fprintf(hash, " %q", entry)
		}
	}
	return hex.EncodeToString(hash.Sum(nil)[:12]), job
}

// fileStamp changes with a file.
func fileStamp(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return "none"
	}
	return fmt.Sprint(info.Size(), " ", info.ModTime().UnixNano())
}

// names is what a template imports: what a worker had imported, or torch where nothing is
// known and the script has the word import before it.
func (m *memory) names(p *program) []string {
	var names []string
	for _, name := range m.read(modulesFile) {
		if moduleName.MatchString(name) && !m.isLeft(name) && len(names) < maxModules {
			names = append(names, name)
		}
	}
	if len(names) == 0 && !m.isLeft("torch") && importsTorch(p) {
		names = []string{"torch"}
	}
	return names
}

var torchImport = regexp.MustCompile(`(?m)^\s*(import|from)\s+torch\b`)

func importsTorch(p *program) bool {
	info, err := os.Stat(p.script)
	return err == nil && info.Mode().IsRegular() && torchImport.MatchString(beginning(p.script, maxMemory))
}

// isLeft reports whether a module, or a package that holds it, breaks a rule.
func (m *memory) isLeft(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for left := range m.out {
		if name == left || strings.HasPrefix(name, left+".") {
			return true
		}
	}
	return false
}

// blame notes that a template has ended while it imported a module, and reports whether the module is
// left out from now on. A template that was killed may have ended for another reason: then the module
// is left out only after the second time.
func (m *memory) blame(name, state string) bool {
	if killed := state == "signal: killed"; killed && !slices.Equal(m.read(killedFile), []string{name}) {
		_ = m.write(killedFile, []string{name})
		return false
	}
	m.leave(name, "ends the template: "+state, true)
	return true
}

// leave remembers that a module is not to be imported by a template, at all or for a day.
func (m *memory) leave(name, why string, passes bool) {
	why = strings.Join(strings.Fields(why), " ")
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.out[name]; ok || !moduleName.MatchString(name) {
		return
	}
	m.log.Info("a module is left out of warm starts", "module", name, "reason", why)
	l := left{why: why}
	if passes {
		l.since = time.Now()
	}
	m.out[name] = l
	var lines []string
	for name, l := range m.out {
		line := name + "\t" + l.why
		if !l.since.IsZero() {
			line += "\t" + l.since.UTC().Format(time.RFC3339)
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	_ = m.write(leftFile, lines)
}

func (m *memory) took() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

func (m *memory) keepTook(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = d
	_ = m.write(tookFile, []string{fmt.Sprintf("%.3f", d.Seconds())})
}

// read returns the lines of a file that this user owns; none where there is no such file.
func (m *memory) read(name string) (lines []string) {
	if m.dir == "" {
		return nil
	}
	f, info, err := safeopen.Open(filepath.Join(m.dir, name))
	if err != nil {
		return nil
	}
	defer f.Close()
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != os.Geteuid() || info.Size() > maxMemory {
		return nil
	}
	all, _ := io.ReadAll(io.LimitReader(f, maxMemory))
	for line := range strings.Lines(string(all)) {
		lines = append(lines, strings.TrimSuffix(line, "\n"))
	}
	return lines
}

// write replaces a file at once.
func (m *memory) write(name string, lines []string) error {
	if m.dir == "" {
		return nil
	}
	f, err := os.CreateTemp(m.dir, name+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(strings.Join(lines, "\n") + "\n")
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(m.dir, name))
}
