package warm

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
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
