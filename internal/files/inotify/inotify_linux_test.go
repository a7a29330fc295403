package inotify_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/muster-run/muster/internal/files/inotify"
)

func TestWatcher(t *testing.T) {
	w, err := inotify.New()
	if err != nil {
		t.Skip("no inotify:", err)
	}
	defer w.Close()
	events := make(chan inotify.Event, 16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(func(e inotify.Event) { events <- e })
	}()
	dir := t.TempDir()
	id, err := w.Add(dir, inotify.Create|inotify.MovedTo|inotify.OnlyDir)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "stdout.log")
	err = os.WriteFile(path+".new", []byte("x"), 0o644)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, mask := range []inotify.Mask{inotify.Create, inotify.MovedTo} {
		if got, want := <-events, (inotify.Event{ID: id, Mask: mask}); got != want {
			t.Errorf("event %+v, want %+v", got, want)
		}
	}
	if _, err := w.Add(path, inotify.Modify|inotify.OnlyDir); err == nil {
		t.Error("a file is watched as a directory")
	}
	once, err := w.Add(path, inotify.Modify|inotify.Oneshot)
	if err == nil {
		err = os.WriteFile(path, []byte("y"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := <-events; got.ID != once || got.Mask&inotify.Modify == 0 {
		t.Errorf("event %+v of a file that was written", got)
	}
	w.Close()
	<-done
	if _, err := w.Add(dir, inotify.Create); err == nil {
		t.Error("a closed Watcher takes a path")
	}
}

func TestRemote(t *testing.T) {
	if inotify.Remote("/proc") || inotify.Remote(filepath.Join(t.TempDir(), "none")) {
		t.Error("/proc is taken for a remote file system")
	}
}
