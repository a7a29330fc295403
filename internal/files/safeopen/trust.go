package safeopen

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Trusted reports whether only this user and root may write to a file or directory. With
// sticky a directory with the sticky bit, as /tmp is, counts as one: others cannot
// replace there what is this user's. A group that has the user's number has no other
// members.
func Trusted(info fs.FileInfo, sticky bool) bool {
	return ours(Owner(info)) && !othersWrite(info, sticky)
}

func ours(uid int) bool { return uid == 0 || uid == os.Geteuid() }

func othersWrite(info fs.FileInfo, sticky bool) bool {
	others := info.Mode() & 0o022
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Gid) == os.Geteuid() {
		others &^= 0o020
	}
	return others != 0 && !(sticky && info.Mode()&os.ModeSticky != 0)
}

// Owner returns the user that a file belongs to, -1 if that is unknown.
func Owner(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}

// maxLinks is how many links Exposed follows, as many as Linux does.
const maxLinks = 40

// Exposed returns the first directory or link on the way to an absolute path, which
// counts as one, that lets somebody other than this user and root put something else in
// the path's place; nil where there is none. Of a link both ways count, that to it and
// that to its target.
func Exposed(path string) (at string, info fs.FileInfo, err error) {
	at, rest, links := "/", path, 0
	for {
		if info, err = os.Lstat(at); err != nil {
			return "", nil, err
		}
		isLink := info.Mode()&fs.ModeSymlink != 0
		uid := Owner(info)
		if !ours(uid) && !unmapped(uid) || !isLink && othersWrite(info, true) {
			return at, info, nil
		}
		if isLink {
			target, err := os.Readlink(at)
			if links++; err == nil && links > maxLinks {
				err = &fs.PathError{Op: "readlink", Path: at, Err: syscall.ELOOP}
			}
			if err != nil {
				return "", nil, err
			}
			rest = target + "/" + rest
			if at = filepath.Dir(at); filepath.IsAbs(target) {
				at = "/"
			}
		}
		var name string
		if name, rest, _ = strings.Cut(strings.TrimLeft(rest, "/"), "/"); name == "" {
			return "", nil, nil
		}
		at = filepath.Join(at, name) // there is no link in at: ".." leads back the same way
	}
}

// unmapped reports whether a user's number stands for all those that a user namespace, as
// containers have it, does not know. There root's directories of the host seem to be
// nobody's, so that such an owner says nothing.
// Source: user_namespaces(7), "Unmapped user and group IDs".
func unmapped(uid int) bool {
	const overflow = 65534
	if uid != overflow {
		return false
	}
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(text)), " ") != "0 0 4294967295"
}
