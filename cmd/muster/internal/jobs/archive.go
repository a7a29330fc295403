package jobs

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/format/text"
)

// How much a bundle holds, at most, before it is compressed.
const (
	maxBundle     = 64 << 20
	maxBundleFile = 8 << 20 // of each file; of a larger one the end
	maxBundleDir  = 1000    // files and directories that are looked at in one directory
)

// An archive is a .tar.gz in the making. What it leaves out or cuts is in its index, and never
// an error; err is the first of those in writing.
type archive struct {
	zip   *gzip.Writer
	tar   *tar.Writer
	dir   string // that all entries are in
	of    string // the directory in it of the host whose files are added; "" if there is one only
	time  time.Time
	left  int // how many more bytes it takes
	index [][]string
	err   error
}

func newArchive(w io.Writer, dir string) *archive {
	zip := gzip.NewWriter(w)
	return &archive{zip: zip, tar: tar.NewWriter(zip), dir: dir, time: time.Now(), left: maxBundle,
		index: [][]string{{"FILE", "BYTES", ""}}}
}

// omit notes in the index that something is missing, and why.
func (a *archive) omit(name string, why error) {
	a.index = append(a.index, []string{console.Printable(path.Join(a.of, name)), "-",
		"left out: " + console.Printable(why.Error())})
}

// add adds a file. note says what is special about it.
func (a *archive) add(name string, content []byte, changed time.Time, note string) {
	if len(content) > a.left {
		a.omit(name, fmt.Errorf("the bundle has its limit of %d MiB", maxBundle>>20))
		return
	}
	name = path.Join(a.of, name)
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
	a.add(name, []byte(b.String()), a.time, note)
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

// files adds those files of a directory below root whose names end in one of some ways.
func (a *archive) files(root *os.Root, dir string, limit int64, ends ...string) {
	at, err := root.Open(dir)
	var entries []os.DirEntry
	if err == nil {
		entries, err = at.ReadDir(maxBundleDir)
		at.Close()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		a.omit(dir, err)
	}
	if len(entries) == maxBundleDir {
		a.omit(filepath.Join(dir, "..."), fmt.Errorf("what comes after the first %d entries", maxBundleDir))
	}
	slices.SortFunc(entries, func(x, y os.DirEntry) int { return strings.Compare(x.Name(), y.Name()) })
	for _, e := range entries {
		if !e.IsDir() && slices.Contains(ends, filepath.Ext(e.Name())) && e.Name()[0] != '.' {
			a.file(root, filepath.Join(dir, e.Name()), limit)
		}
	}
}

// close adds the index and ends the archive.
func (a *archive) close() error {
	var b strings.Builder
	err := text.Columns(&b, "", console.MaxColumn, a.index)
	a.write("index.txt", []byte(b.String()), a.time)
	return errors.Join(a.err, err, a.tar.Close(), a.zip.Close())
}
