package logs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/muster-run/muster/internal/safeopen"
)

// makeJobDir makes the run's directory in that of its job: below root, a shared disk perhaps,
// <run id>/<host>, or <host>.1 and so on where an agent has that already.
func (r *Run) makeJobDir(root string) error {
	job := filepath.Join(root, fileName(r.cfg.RunID))
	if err := os.Mkdir(job, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if info, err := os.Lstat(job); err != nil {
		return err
	} else if !info.IsDir() {
		return fmt.Errorf("%s is a file or a link; remove it, or name another run ID with --rdzv-id", job)
	}
	// From here on it may be replaced: what counts is what was opened.
	in, err := os.OpenRoot(job)
	if err != nil {
		return err
	}
	defer in.Close()
	host := fileName(r.hostname)
	for name, i := host, 1; ; i++ {
		err := in.Mkdir(name, 0o700)
		if err == nil {
			host = name
			break
		}
		if !errors.Is(err, fs.ErrExist) {
			return named(filepath.Join(job, name), err)
		}
		name = host + "." + strconv.Itoa(i)
	}
	r.dir = filepath.Join(job, host)
	if r.root, err = in.OpenRoot(host); err != nil {
		return named(r.dir, err)
	}
	of, err := in.Stat(".")
	if err != nil {
		return named(job, err)
	}
	own, err := r.root.Stat(".")
	if err != nil {
		return named(r.dir, err)
	}
	// Users are compared as the file system has them, which may not be as this host does.
	if safeopen.Owner(of) != safeopen.Owner(own) {
		return errors.Join(fmt.Errorf("%s belongs to another user (uid %d), who could read and forge the logs; name "+
			"another run ID with --rdzv-id, or another directory", job, safeopen.Owner(of)),
			r.root.Close(), in.Remove(host))
	}
	return nil
}

// fileName makes a safe and readable file name of any text. A name that had to be changed ends in
// a part of the text's hash, so that two texts never have the same one.
func fileName(s string) string {
	name := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-+=@,", c) {
			return c
		}
		return '_'
	}, s[:min(len(s), maxDirName)])
	if name == s && s != "" && !strings.HasPrefix(s, ".") && !strings.HasPrefix(s, "attempt_") {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return "_" + strings.TrimLeft(name, ".") + "-" + hex.EncodeToString(sum[:4])
}

// jobLayout is that of Config.Job: a directory per global rank.
func jobLayout(dir string, w Worker) Files {
	return filesIn(filepath.Join(dir, strconv.Itoa(w.Rank)))
}
