package warm

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// Of a library what is in memory counts, also with small gaps; other files that are mapped do not.
func TestMapped(t *testing.T) {
	page := os.Getpagesize()
	dir := t.TempDir()
	use := func(name string, prot int, pages ...int) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, make([]byte, 1024*page), 0o700); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		text, err := unix.Mmap(int(f.Fd()), int64(4*page), 1000*page, prot, unix.MAP_PRIVATE)
		if err != nil {
			t.Skipf("cannot map an executable file: %v", err)
		}
		t.Cleanup(func() { _ = unix.Munmap(text) })
		if err := unix.Madvise(text, unix.MADV_RANDOM); err != nil { // nothing around a page is mapped with it
			t.Fatal(err)
		}
		sum := byte(0)
		for _, n := range pages {
			sum += text[n*page]
		}
		if sum != 0 {
			t.Fatal("no zeros")
		}
		return path
	}
	library := use("a library", unix.PROT_READ|unix.PROT_EXEC, 0, 10, 500)
	data := use("data", unix.PROT_READ, 0)
	lines := mapped(os.Getpid())
	i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, library+"\t") })
	if i < 0 || slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, data) }) {
		t.Fatalf("want %s and not %s:\n%s", library, data, strings.Join(lines, "\n"))
	}
	read := ahead(lines[i], 1<<40)
	if least := int64(12 * page); read < least || read > 600*int64(page) {
		t.Errorf("%d bytes of %s are read ahead, want at least %d and not all", read, lines[i], least)
	}
	if got := mapped(1 << 30); got != nil {
		t.Errorf("of a process that is not there: %q", got)
	}
}

func TestAppendPart(t *testing.T) {
	var got []part
	for _, p := range []part{{0, 10}, {10, 10}, {5, 2}, {300 << 10, 5}, {0, 1}} {
		got = appendPart(got, p)
	}
	want := []part{{0, 20}, {300 << 10, 5}, {0, 1}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(part{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// ahead reads a file ahead up to a limit and returns how much was asked for.
func ahead(line string, limit int64) (sum int64) {
	readFileAhead(line, func(n int64) bool {
		if sum+n > limit {
			return false
		}
		sum += n
		return true
	})
	return sum
}

// What somebody has written into the list does no harm: a huge file ends at the limit.
func TestReadFileAhead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path, make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]int64{
		path: 1000, path + "\t0 100\t200 800": 900, path + "\t0 1001\t-1 5\t5 -1\tx\t\t9223372036854775807 9223372036854775807": 0,
		"": 0, "/dev/zero": 0, "/dev/zero\t0 5": 0, filepath.Dir(path): 0, path + "x": 0,
	} {
		if got := ahead(line, 1<<40); got != want {
			t.Errorf("%q: %d bytes, want %d", line, got, want)
		}
	}
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Fatal(err)
	}
	if got := ahead(path+"\t0 "+strconv.Itoa(1<<40), 1<<20); got != 1<<20 {
		t.Errorf("%d bytes of a huge file, want 1 MiB", got)
	}
}
