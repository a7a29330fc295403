package launch

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/files/tempdir"
	"github.com/muster-run/muster/logs"
)

// checkLogDir says why log files could not be made, as far as that can be seen
// without making one, so that it is reported with whatever else is wrong.
func checkLogDir(cfg logs.Config) error {
	dir, advice := cfg.Dir, "name another directory with logs.Config.Dir"
	switch dir {
	case os.DevNull:
		if cfg.DuplicateStdoutFilters != nil || cfg.DuplicateStderrFilters != nil {
			return fmt.Errorf(
				"log directory %s keeps no files, so there is no place for duplicate filters; name another with logs.Config.Dir or leave the filters out",
				dir)
		}
		return nil
	case "":
		dir, advice = tempdir.Find(), "set TMPDIR or name one with logs.Config.Dir"
	}
	parent := tempdir.Existing(dir) // what is missing will be made there
	info, err := os.Stat(parent)
	switch {
	case err != nil:
		return fmt.Errorf("log directory: %w; %s", err, advice)
	case !info.IsDir():
		return fmt.Errorf("log directory %s: %s is a file, %w; %s", dir, parent, syscall.ENOTDIR, advice)
	case unix.Access(parent, unix.W_OK|unix.X_OK) != nil:
		return fmt.Errorf("log directory %s: %s is not writable; %s", dir, parent, advice)
	}
	return nil
}

// warnOfLogDir logs who else can replace the run's directory. The job runs there all the same.
// A directory that everybody may write to is a mistake, and a warning; one of a colleague, of
// a group or, for root in a container, of a user is where many people work.
func warnOfLogDir(cfg *Config, dir string) {
	if dir == "" {
		return
	}
	at, info, err := safeopen.Exposed(dir)
	if err != nil || info == nil {
		return
	}
	advice := "name another one with logs.Config.Dir"
	if cfg.Logs.Dir == "" {
		advice = "set TMPDIR or name one with logs.Config.Dir"
	}
	level := slog.LevelInfo
	if info.Mode()&0o002 != 0 && info.IsDir() {
		level = slog.LevelWarn
	}
	cfg.Logger.Log(context.Background(), level,
		"another user can replace the log directory, and so read and forge what is written there and have files of this user overwritten; "+advice+", or let only this user write to the directory named here (chown, chmod go-w)",
		"log_dir", dir, "directory", at, "owner_uid", safeopen.Owner(info), "mode", info.Mode().String())
}
