package warm

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Known is what is learnt of one script, with one interpreter and environment.
type Known struct {
	Target, Python string // the script's path, or a module's name
	// Changed says that the script, its modules, packages or the interpreter have changed since, so
	// nothing of it counts.
	Changed bool
	Modules int // what a template imports
	Took    time.Duration
	Left    map[string]string // why a module is left out

	dir string
}

// List returns what is learnt, in the directory dir or, if that is "", Dir.
func List(dir string) ([]Known, error) {
	if dir == "" {
		var err error
		if dir, err = Dir(); err != nil {
			return nil, err
		}
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []Known
	for _, entry := range entries {
		m := &memory{dir: filepath.Join(dir, entry.Name()), log: slog.New(slog.DiscardHandler), out: map[string]left{}}
		job := m.read(jobFile)
		if len(job) != 4 || check(m.dir) != nil {
			continue
		}
		m.recall()
		k := Known{Target: strings.TrimPrefix(job[0], "script "), Python: strings.TrimPrefix(job[2], "python "),
			Took: m.last, Left: map[string]string{}, dir: m.dir}
		for name, l := range m.out {
			k.Left[name] = l.why
		}
		stamp := ""
		if filepath.IsAbs(k.Target) {
			stamp = fileStamp(k.Target)
		}
		k.Changed = job[1] != "stamp "+stamp || job[3] != "stamp "+fileStamp(k.Python) || m.isOld()
		for _, name := range m.read(modulesFile) {
			if moduleName.MatchString(name) && !m.isLeft(name) {
				k.Modules++
			}
		}
		all = append(all, k)
	}
	return all, err
}

// Forget removes it.
func (k *Known) Forget() error { return os.RemoveAll(k.dir) }
