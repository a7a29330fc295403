// Package version says which muster this is. It is the one place for that:
// `muster version`, the metric muster_build_info and the wheel take it from here.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version is the release, or the next one with -dev behind it. CHANGELOG.md begins
// with it, and internal/tools/wheel.py reads it in this file.
const Version = "0.1.0"

// Torchrun is the release of PyTorch whose command line muster takes.
const Torchrun = "2.15"

// Info is what a program was built from.
type Info struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`   // "" where Go was not told, as in `go build -buildvcs=false`
	Date     string `json:"date,omitempty"`     // the commit's, in RFC 3339
	Modified bool   `json:"modified,omitempty"` // the tree had changes that are not in the commit
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

// Read says what this program was built from.
func Read() Info {
	i := Info{Version: Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, s := range build.Settings {
			switch s.Key {
			case "vcs.revision":
				i.Commit = s.Value
			case "vcs.time":
				i.Date = s.Value
			case "vcs.modified":
				i.Modified = s.Value == "true"
			}
		}
	}
	return i
}

// String is the version, and in brackets the commit, if it is known.
func (i Info) String() string {
	if i.Commit == "" {
		return i.Version
	}
	commit := i.Commit[:min(len(i.Commit), 12)]
	if i.Modified {
		commit += " with changes"
	}
	if len(i.Date) >= len("2006-01-02") {
		commit += ", " + i.Date[:len("2006-01-02")]
	}
	return i.Version + " (" + commit + ")"
}

// Text is what `muster version` prints.
func Text() string {
	v := Read()
	return fmt.Sprintf("muster %s %s %s/%s, torchrun %s command line\n", v, v.Go, v.OS, v.Arch, Torchrun)
}
