//go:build !linux

package safeopen

import (
	"io/fs"
	"os"
)

// OpenIf opens a file, and closes it if look returns an error for it. It waits for
// nobody. The flags are os.O_RDONLY or os.O_WRONLY, with syscall.O_NOFOLLOW to fail with
// ELOOP for a link.
func OpenIf(path string, flags int, look func(fs.FileInfo) error) (*os.File, fs.FileInfo, error) {
	return openThenLook(path, flags, look)
}
