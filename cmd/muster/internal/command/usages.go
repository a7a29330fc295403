package command

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/muster-run/muster/cmd/muster/internal/console"
)

// usages has a file NAME.txt for each command but run.
//
//go:embed help
var usages embed.FS

// Usage is what --help of a command prints, without the exit statuses; "" for run.
func Usage(command string) string {
	text, _ := usages.ReadFile("help/" + command + ".txt")
	return string(text)
}

// CreateNew creates a file that is not there yet.
func CreateNew(file, option string, mode fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%s exists already; remove it, or name another file with %s", console.Printable(file), option)
	}
	return f, err
}
