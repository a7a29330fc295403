//go:build linux

package logs_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/logs"
)

// A worker writes as fast as it can. Its segments and its file hold each line
// once, in order, when it has ended and for a reader beside it.
func TestRotationLosesNothing(t *testing.T) {
	const size, limit = 128, 4 << 20
	for _, tt := range []struct {
		name  string
		lines int
		tee   logs.Std
		dir   string
	}{{"redirected", 600_000, 0, ""}, {"tee", 200_000, logs.StdOut, ""}, {"tmpfs", 200_000, 0, "/dev/shm"}} {
		t.Run(tt.name, func(t *testing.T) {
			lines, toStdout := tt.lines, 0
			for i := range lines {
				if i*size/8192%2 == 0 {
					toStdout++
				}
			}
			dir := t.TempDir()
			if tt.dir != "" {
				var err error
				if dir, err = os.MkdirTemp(tt.dir, "muster"); err != nil {
					t.Skip(err)
				}
				defer os.RemoveAll(dir)
			}
			j := newJob(t, logs.Config{
				Dir: dir, Redirects: logs.StdSpec{All: logs.StdAll}, Tee: logs.StdSpec{All: tt.tee}, MaxSize: limit, Keep: 1000, LinePrefixTemplate: ":",
			})
			a, err := j.Attempt(0, []logs.Worker{{LocalRank: 0}})
			if err != nil {
				t.Fatal(err)
			}
			sink := a.Sink(0)
			begin, cmd := startChild(t, sink.Stdout, sink.Stderr, "flood", strconv.Itoa(lines), strconv.Itoa(size), "8192")
			if err := a.Started(); err != nil {
				t.Fatal(err)
			}
			beside := make(chan []int)
			ended := make(chan struct{})
			go func() { beside <- readNumbers(t, sink.StdoutPath, ended) }()
			begin()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			// The disk gets its room back.
			look := time.NewTicker(10 * time.Millisecond)
			defer look.Stop()
			for heldBack(t, sink.StdoutPath) > limit || heldBack(t, sink.StderrPath) > limit {
				<-look.C
			}
			close(ended)
			if stats := finish(t, a); tt.tee != 0 && (stats.LostBytes != 0 || stats.Lines != int64(toStdout)) {
				t.Errorf("tee: %+v", stats)
			}
			all := [][]int{<-beside} // all but the last are of stdout
			j.Close(true)
			closed := make(chan struct{})
			close(closed)
			all = append(all, readNumbers(t, sink.StdoutPath, closed), readNumbers(t, sink.StderrPath, closed))
			for i, got := range all {
				want := toStdout
				if i == len(all)-1 {
					want = lines - toStdout
				}
				if len(got) != want {
					t.Errorf("reader %d: %d lines, want %d", i, len(got), want)
				}
				for k := 1; k < len(got); k++ {
					if step := got[k] - got[k-1]; step != 1 && step != 65 {
						t.Fatalf("reader %d: line %d after %d", i, got[k], got[k-1])
					}
				}
			}
			segments, _ := filepath.Glob(sink.StdoutPath + ".*")
			if want := toStdout * size / limit; len(segments) < want {
				t.Errorf("%d segments, want %d", len(segments), want)
			}
			for _, path := range segments {
				if filepath.Ext(path) != ".gz" {
					t.Errorf("%s is left", path)
				}
			}
			if tt.tee != 0 {
				if got := strings.Count(content(t, j.stdout), "\n:"); got != toStdout-1 {
					t.Errorf("tee: %d lines, want %d", got+1, toStdout)
				}
			}
		})
	}
}

// heldBack returns how many bytes the file has behind its hole, and where its file
// system gives the room back at once, how many the disk has.
func heldBack(t *testing.T, path string) int64 {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd := int(f.Fd())
	var s unix.Stat_t
	var fs unix.Statfs_t
	from, err := unix.Seek(fd, 0, unix.SEEK_DATA)
	if err := errors.Join(err, unix.Fstat(fd, &s), unix.Fstatfs(fd, &fs)); err != nil {
		t.Fatal(err)
	}
	if fs.Type == unix.XFS_SUPER_MAGIC { // has blocks for what may come
		return s.Size - from
	}
	return max(s.Size-from, s.Blocks*512)
}

// readNumbers reads the numbers that the file's lines begin with, until nothing
// is left after ended was closed.
func readNumbers(t *testing.T, path string, ended chan struct{}) (numbers []int) {
	r, err := logs.OpenRotated(path)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer r.Close()
	in := bufio.NewReader(r)
	var line []byte
	last := false
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == io.EOF && last:
			if len(line) > 0 {
				t.Errorf("the rest %q", line)
			}
			return numbers
		case err == io.EOF:
			select {
			case <-ended:
				last = true
			case <-look.C:
			}
			continue
		case err != nil:
			t.Error(err)
			return numbers
		}
		number, _, _ := bytes.Cut(line, []byte(" "))
		n, err := strconv.Atoi(string(number))
		if err != nil || len(line) != 128 {
			t.Errorf("torn line %q", line)
			return numbers
		}
		numbers = append(numbers, n)
		line = line[:0]
	}
}
