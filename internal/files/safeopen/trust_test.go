package safeopen_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/muster-run/muster/internal/files/safeopen"
)

const nobody = 65534 - 1 // not the number that stands for unknown ones

// Whoever may change a directory or a link on the way to a path is found.
func TestExposed(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if at, _, err := safeopen.Exposed(base); at != "" || err != nil {
		t.Skipf("%s is exposed: %v", at, err)
	}
	dir := func(name string, mode os.FileMode) string {
		path := filepath.Join(base, name)
		if err := errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := func(target, path string) string {
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	mine, open, sticky := dir("mine", 0o755), dir("open", 0o777), dir("sticky", 0o777|os.ModeSticky)
	dir("mine/a", 0o700)
	dir("open/a", 0o700)
	dir("sticky/a", 0o700)
	link("../sticky/a/../../mine", open+"/there")
	link(open+"/there", mine+"/through")
	link("loop", mine+"/loop")
	tests := map[string]string{
		mine + "/a": "", sticky + "/a": "", sticky: "", open + "/a": open, open: open,
		link("open/a", base+"/in"): open, // a link to what is open
		open + "/there/a":          open, // a link in an open directory, to a safe one
		mine + "/through/a":        open,
		base + "//mine/./a/":       "",
	}
	if os.Geteuid() == 0 {
		other := dir("other", 0o755)
		dir("other/a", 0o700)
		theirs := link(mine, sticky+"/theirs")
		colleagues := dir("colleagues", 0o770)
		for _, err := range []error{os.Chown(other, nobody, 0), os.Lchown(theirs, nobody, 0), os.Chown(colleagues, 0, nobody)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		tests[other+"/a"], tests[theirs+"/a"], tests[colleagues] = other, theirs, colleagues
	}
	for path, want := range tests {
		if at, info, err := safeopen.Exposed(path); at != want || (info != nil) != (want != "") || err != nil {
			t.Errorf("%s: %q, %v, want %q", path, at, err, want)
		}
	}
	if _, _, err := safeopen.Exposed(mine + "/loop"); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a loop: %v", err)
	}
	if _, _, err := safeopen.Exposed(mine + "/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
}
