package jobfile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/files/safeopen"
)

// A State is what a file says.
type State string

const (
	Unknown State = "unknown" // there is no lock to ask
	Runs    State = "runs"
	Ended   State = "ended"
	// Gone: the agent has ended, or its host has, and did not say how. Where another
	// host's locks cannot be seen this may be wrong.
	Gone State = "gone"
)

// A File is what an agent has written.
type File struct {
	State State
	Begin Begin
	End   End // if it has ended
}

// maxFile bounds what is read, in bytes: two lines.
const maxFile = 256 << 10

// Read reads the file in a directory. The error is fs.ErrNotExist where there is
// none. It takes the lock for a moment if nobody holds it.
func Read(dir string) (*File, error) {
	file, _, err := safeopen.Open(filepath.Join(dir, Name))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	f, locked, err := parse(file)
	if err != nil || f.State == Ended || !locked {
		return f, err
	}
	switch err := unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB); {
	case err == unix.EWOULDBLOCK:
		f.State = Runs
		return f, nil
	case err != nil:
		return f, nil
	}
	// It may have ended since it was read.
	if f, _, err = parse(file); err == nil && f.State != Ended {
		f.State = Gone
	}
	return f, err
}

// parse reads the lines of a file.
func parse(from io.ReaderAt) (f *File, locked bool, err error) {
	body, err := io.ReadAll(io.NewSectionReader(from, 0, maxFile+1))
	if err != nil {
		return nil, false, err
	}
	if len(body) > maxFile {
		return nil, false, fmt.Errorf("has more than %d bytes", maxFile)
	}
	line, rest, _ := bytes.Cut(body, []byte{'\n'})
	f = &File{State: Unknown}
	var begin first
	if err := json.Unmarshal(line, &begin); err != nil {
		return nil, false, fmt.Errorf("the first line is none that an agent writes: %w", err)
	}
	if begin.Version != version {
		return nil, false, fmt.Errorf("is of version %d; this muster knows %d", begin.Version, version)
	}
	f.Begin = begin.Begin
	second, _, whole := bytes.Cut(rest, []byte{'\n'})
	if !whole {
		return f, begin.Locked, nil
	}
	if err := json.Unmarshal(second, &f.End); err != nil {
		return nil, false, fmt.Errorf("the second line is none that an agent writes: %w", err)
	}
	f.State = Ended
	return f, begin.Locked, nil
}
