package auth

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// MinToken is the least length of a token, in bytes.
const MinToken = 16

// maxSecret bounds what is read of a file.
const maxSecret = 4096

// private says what is wrong with a file of a secret: it is for this user alone, and for
// a group that may read it, as Kubernetes' mounts are.
func private(option, path string, info os.FileInfo) error {
	if perm := info.Mode().Perm(); perm&0o027 != 0 {
		return fmt.Errorf("%s: other users can read or change %s (mode %04o); chmod 600 it, and replace what is in it",
			option, path, perm)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s: %s belongs to another user (uid %d), who knows what is in it; make one of your own", option,
			path, stat.Uid)
	}
	return nil
}

// checkToken says what is wrong with a token.
func checkToken(token string) error {
	if len(token) < MinToken {
		return fmt.Errorf("the token has %d bytes, which can be guessed: want %d or more, for example from `openssl "+
			"rand -hex 32`", len(token), MinToken)
	}
	return nil
}

// ReadSecret reads a token or a password from a file, without the end of the line. Option
// is what named the file, for errors, which do not show what is in it.
func ReadSecret(option, path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // not waiting for who writes to a FIFO
	if err != nil {
		return "", fmt.Errorf("%s: %w", option, err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", option, err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s: %s is not a file", option, path)
	}
	if err := private(option, path, info); err != nil {
		return "", err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	text := strings.TrimRight(string(b), "\r\n")
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", option, err)
	case len(b) > maxSecret:
		return "", fmt.Errorf("%s: %s has more than %d bytes", option, path, maxSecret)
	case text == "":
		return "", fmt.Errorf("%s: %s is empty", option, path)
	}
	return text, nil
}
