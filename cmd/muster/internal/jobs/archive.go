package jobs

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/format/text"
)

const (
	maxBundle      = 64 << 20 // how much a bundle holds, at most, before it is compressed
	maxBundleFiles = 10_000   // files and directories that are looked at in one attempt
)

// bundledFiles are how the names of files end that a bundle has, and how much it has of each: the end.
var bundledFiles = map[string]int64{
	".json": 8 << 20, ".jsonl": 8 << 20, ".txt": 8 << 20, ".pickle": 8 << 20, ".log": 64 << 10,
}

// An archive is a .tar.gz in the making. What it leaves out or cuts is in its index, and never
// an error; err is the first of those in writing.
type archive struct {
	zip   *gzip.Writer
	tar   *tar.Writer
	dir   string // that all entries are in
	left  int    // how many more bytes it takes
	index [][]string
	err   error
}

func newArchive(w io.Writer, dir string) *archive {
	zip := gzip.NewWriter(w)
	return &archive{zip: zip, tar: tar.NewWriter(zip), dir: dir, left: maxBundle, index: [][]string{{"FILE", "BYTES", ""}}}
}

// omit notes in the index that something is missing, and why.
func (a *archive) omit(name string, why error) {
	a.index = append(a.index, []string{console.Printable(name), "-", "left out: " + console.Printable(why.Error())})
}

// add adds a file. note says what is special about it.
func (a *archive) add(name string, content []byte, changed time.Time, note string) {
	if len(content) > a.left {
		a.omit(name, fmt.Errorf("the bundle has its limit of %d MiB", maxBundle>>20))
		return
	}
	a.left -= len(content)
	a.index = append(a.index, []string{console.Printable(name), fmt.Sprint(len(content)), note})
	a.write(name, content, changed)
}

func (a *archive) write(name string, content []byte, changed time.Time) {
	if a.err != nil {
		return
	}
	a.err = a.tar.WriteHeader(&tar.Header{Name: path.Join(a.dir, name), Mode: 0o600, Size: int64(len(content)),
		ModTime: changed.Truncate(time.Second)})
	if a.err == nil {
		_, a.err = a.tar.Write(content)
	}
}

// print adds what a function writes. Of an error the index has the text, beside what was written.
func (a *archive) print(name string, write func(io.Writer) error) {
	var b strings.Builder
	note := ""
	if err := write(&b); err != nil {
		note = console.Printable(err.Error())
	}
	a.add(name, []byte(b.String()), time.Now(), note)
}

// file adds the last of a file below a directory, limit bytes at most. It follows no link.
func (a *archive) file(root *os.Root, name string, limit int64) {
	f, info, err := safeopen.OpenIn(root, name)
	if err != nil {
		a.omit(name, err)
		return
	}
	defer f.Close()
	size := info.Size()
	content, err := io.ReadAll(io.NewSectionReader(f, max(0, size-limit), min(size, limit)))
	if err != nil {
		a.omit(name, err)
		return
	}
	note := ""
	if size > limit {
		note = fmt.Sprintf("the last of %d bytes", size)
	}
	a.add(name, content, info.ModTime(), note)
}

// files adds what bundledFiles names of a directory below root and all in it, or of root alone.
func (a *archive) files(root *os.Root, dir string) {
	seen := 0
	_ = fs.WalkDir(root.FS(), dir, func(name string, e fs.DirEntry, err error) error {
		limit := bundledFiles[path.Ext(name)]
		switch seen++; {
		case seen > maxBundleFiles:
			a.omit(path.Join(dir, "..."), fmt.Errorf("what comes after the first %d entries", maxBundleFiles))
			return fs.SkipAll
		case err != nil:
			a.omit(name, err)
		case e.IsDir() && dir == "." && name != dir:
			return fs.SkipDir
		case !e.IsDir() && limit > 0 && e.Name()[0] != '.':
			a.file(root, name, limit)
		}
		return nil
	})
}

// close adds the index and ends the archive.
func (a *archive) close() error {
	var b strings.Builder
	err := text.Columns(&b, "", console.MaxColumn, a.index)
	a.write("index.txt", []byte(b.String()), time.Now())
	return errors.Join(a.err, err, a.tar.Close(), a.zip.Close())
}
