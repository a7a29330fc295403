package failure

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/format/pyjson"
)

// WriteErrorFile writes an error to dst, the agent's own TORCHELASTIC_ERROR_FILE, for
// the program that started the agent, in the form that @record uses. An empty dst or os.DevNull
// writes nothing. A file that is there already is replaced, with a warning; something
// other than a file is left alone and an error. dst is complete or not touched, unless it cannot
// be replaced, as a mount: then it is written in place.
//
// Of a *ProcessFailure, the job's root cause, a sound error file of the object form is
// copied with message.errorCode set to the worker's exit code; one of the string form
// is copied as it is, with a warning, as torchrun does. A missing timestamp is filled
// in. Where the worker left no sound file, one is made from what is known (torchrun
// writes nothing). Other errors are the agent's own.
// Source: ErrorHandler.dump_error_file and ErrorHandler.record_exception.
func WriteErrorFile(dst string, err error) error {
	if err == nil || dst == "" || filepath.Clean(dst) == os.DevNull {
		return nil
	}
	if root, ok := err.(*ProcessFailure); ok {
		return writeDocument(dst, propagated(root))
	}
	return writeDocument(dst, errorData(err.Error(), err.Error(), time.Now()))
}

func propagated(root *ProcessFailure) pyjson.Value {
	if !root.file.sound() {
		v := errorData(root.Cause, boundTraceback(root.Traceback, maxTraceback), root.FailedAt)
		setErrorCode(&v, root.ExitCode)
		return v
	}
	v := root.file.data
	if !root.file.Object {
		if root.ExitCode != 0 {
			slog.Warn("error file has a string as its message; its errorCode is left unchanged",
				"path", root.file.Path, "rank", root.Rank, "local_rank", root.LocalRank, "pid", root.PID)
		}
		if stamp, ok := v.Get("timestamp"); ok && stamp.Text != "0" && root.file.Timestamp.IsZero() {
			v = pyjson.Dict(slices.Clone(v.Members)...)
			v.Set("timestamp", pyjson.Int(root.FailedAt.Unix()))
		}
		return v
	}
	// Members are copied before they change: the failure keeps its own.
	message, _ := v.Get("message")
	copied := pyjson.Dict(slices.Clone(message.Members)...)
	mendTimestamp(&copied, root)
	document := pyjson.Dict(slices.Clone(v.Members)...)
	document.Set("message", copied)
	setErrorCode(&document, root.ExitCode)
	return document
}

// mendTimestamp sees to it that extraInfo has a timestamp for int(): without
// one a torchrun above would crash.
func mendTimestamp(message *pyjson.Value, root *ProcessFailure) {
	at := root.file.Timestamp
	info, _ := message.Get("extraInfo")
	stamp, _ := info.Get("timestamp")
	switch {
	case at.IsZero():
		at = root.FailedAt
	case stamp.Kind == pyjson.Number || strings.TrimSpace(stamp.Text) == strconv.FormatInt(at.Unix(), 10):
		return
	}
	mended := pyjson.Dict(slices.Clone(info.Members)...)
	mended.Set("timestamp", pyjson.Str(strconv.FormatInt(at.Unix(), 10)))
	message.Set("extraInfo", mended)
}

func setErrorCode(v *pyjson.Value, code int) {
	if code == 0 {
		return
	}
	message, _ := v.Get("message")
	message.Set("errorCode", pyjson.Int(int64(code)))
}

// writeDocument puts v at dst, in one step if that can be.
func writeDocument(dst string, v pyjson.Value) error {
	if err := clearWay(dst); err != nil {
		return fmt.Errorf("write error file %s: %w", dst, err)
	}
	// Not os.CreateTemp: its 0600 would hide the file from whom it is for.
	temp := filepath.Join(filepath.Dir(dst), fmt.Sprintf(".%s.%08x", filepath.Base(dst), rand.Uint32()))
	defer os.Remove(temp)
	err := write(temp, os.O_CREATE|os.O_EXCL, v.Append(nil))
	if err == nil {
		err = os.Rename(temp, dst)
	}
	if errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EXDEV) || errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrPermission) {
		// A mount of its own, or a directory in which it cannot be replaced. No link is followed.
		if other := write(dst, os.O_TRUNC|syscall.O_NOFOLLOW, v.Append(nil)); !errors.Is(other, fs.ErrNotExist) {
			err = other
		}
	}
	if err != nil {
		return fmt.Errorf("write error file %s: %w", dst, safeopen.Bare(err))
	}
	return nil
}

// clearWay looks at what is at dst already.
func clearWay(dst string) error {
	info, err := os.Lstat(dst)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return safeopen.Bare(err)
	case !info.Mode().IsRegular() && info.Mode()&fs.ModeSymlink == 0:
		return fmt.Errorf("there is %s already", modeName(info.Mode()))
	}
	attrs := []any{"path", dst, "bytes", info.Size()}
	if old := readErrorFile(dst); old != nil {
		attrs = append(attrs, "message", oneLine(old.Message, maxCause), "note", old.Note)
	}
	slog.Warn("error file exists already and is replaced", attrs...)
	return nil
}

func write(path string, flags int, data []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|flags, 0o666)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Sync(), file.Close())
}
