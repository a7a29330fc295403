package failure

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/format/pyjson"
	"github.com/muster-run/muster/internal/format/text"
)

// maxErrorFile is how many bytes of an error file are read. torch's own are a
// few KiB.
const maxErrorFile = 4 << 20

// An errorFile is what a worker wrote to the path in TORCHELASTIC_ERROR_FILE.
// Source: ProcessFailure._get_error_data.
type errorFile struct {
	Path    string
	Size    int64
	ModTime time.Time
	// Message is the error in the worker's words: "ValueError: boom".
	Message string
	// Callstack is extraInfo.py_callstack; empty in the string form.
	Callstack string
	// Timestamp is the time in the file, whole seconds; zero where it is missing.
	Timestamp time.Time
	// Object says that the file has the object form, which @record writes,
	// rather than the form whose message is a string.
	Object bool
	// Note says what is wrong with the file, in one line; empty for a sound one.
	Note string

	data pyjson.Value
	ok   bool // data is the whole document and has a message; a Note may still complain
}

// sound reports whether there is a file that has a whole document with a message.
func (f *errorFile) sound() bool { return f != nil && f.ok }

// readErrorFile reads an error file; nil where there is none (no path, nothing
// there). What is there but is not a sound error file gives a Note, and the message if
// that can be read. At most maxErrorFile bytes are read; only regular files are opened,
// links are not followed, and no open or read waits for another process.
func readErrorFile(path string) *errorFile {
	if path == "" {
		return nil
	}
	f := &errorFile{Path: path}
	data, err := f.read()
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	if err == nil {
		err = f.parse(data)
	}
	if err != nil {
		f.Note = oneLine(err.Error(), maxCause)
	}
	return f
}

// read returns the file's first maxErrorFile bytes.
func (f *errorFile) read() ([]byte, error) {
	mode := fs.ModeSymlink // of what the open refuses
	file, info, err := safeopen.OpenIf(f.Path, os.O_RDONLY|syscall.O_NOFOLLOW, func(info fs.FileInfo) error {
		if mode = info.Mode(); !mode.IsRegular() {
			return syscall.ELOOP
		}
		return nil
	})
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("is %s, not a regular file; left alone", modeName(mode))
	}
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", safeopen.Bare(err))
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxErrorFile))
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", safeopen.Bare(err))
	}
	f.Size, f.ModTime = max(info.Size(), int64(len(data))), info.ModTime()
	return data, nil
}

// modeName says what something is that is not a regular file.
func modeName(m fs.FileMode) string {
	return cmp.Or(map[fs.FileMode]string{fs.ModeDir: "a directory", fs.ModeSymlink: "a symbolic link",
		fs.ModeNamedPipe: "a named pipe", fs.ModeSocket: "a socket"}[m.Type()], "a device")
}

// parse fills the fields from the document, as far as there is one.
func (f *errorFile) parse(data []byte) error {
	if len(strings.TrimSpace(string(data[:min(len(data), 64)]))) == 0 && len(data) <= 64 {
		return errors.New("is empty")
	}
	v, err := pyjson.Parse(data)
	if err != nil {
		f.Message = messageOf(data)
		switch {
		case f.Size > maxErrorFile:
			return fmt.Errorf("has %d bytes, of which the first %d were read", f.Size, maxErrorFile)
		case strings.HasPrefix(err.Error(), "unexpected end"):
			return fmt.Errorf("is cut off after %d bytes", len(data))
		}
		return fmt.Errorf("is not JSON: %w", err)
	}
	f.data = v
	shape := f.take()
	message, _ := v.Get("message")
	f.ok = message.Kind == pyjson.String || message.Kind == pyjson.Object && f.Message+f.Callstack != ""
	if shape == nil && !utf8.Valid(data) {
		return errors.New("is not UTF-8; the bytes that are not show as \ufffd")
	}
	return shape
}

// saidMessage finds the first message in a file that is cut off, perhaps within it.
var saidMessage = regexp.MustCompile(`"message": "((?:[^"\\\n]|\\.)*)`)

// messageOf is what a damaged file has of the worker's message.
func messageOf(data []byte) (message string) {
	if found := saidMessage.FindSubmatch(data); found != nil {
		_ = json.Unmarshal(slices.Concat([]byte(`"`), found[1], []byte(`"`)), &message) // "" if it is damaged itself
	}
	return message
}

// take looks for the parts of both forms.
func (f *errorFile) take() error {
	v := &f.data
	if v.Kind != pyjson.Object {
		return fmt.Errorf("holds a %v instead of an object", v.Kind)
	}
	message, ok := v.Get("message")
	if !ok {
		return errors.New(`has no "message"; it was not written by torch's @record`)
	}
	switch message.Kind {
	case pyjson.String:
		f.Message = message.Text
		if stamp, ok := v.Get("timestamp"); ok {
			f.Timestamp = unixTime(stamp)
		}
		return nil
	case pyjson.Object:
	default:
		f.Message = text.Clip(message.String(), maxCause)
		return fmt.Errorf(`has a %v as "message" instead of an object or a string`, message.Kind)
	}
	f.Object = true
	f.Message = textOf(message, "message")
	info, _ := message.Get("extraInfo")
	f.Callstack = textOf(info, "py_callstack")
	stamp, ok := info.Get("timestamp")
	f.Timestamp = unixTime(stamp)
	switch {
	case f.Message == "" && f.Callstack == "":
		return errors.New("has neither a message nor a traceback")
	case !ok:
		return errors.New("has no timestamp")
	case f.Timestamp.IsZero():
		return fmt.Errorf("has an unusable timestamp %s", text.Clip(stamp.String(), 40))
	}
	return nil
}

// textOf is a member's text; of a member that is not a string, its JSON.
func textOf(v *pyjson.Value, key string) string {
	m, ok := v.Get(key)
	switch {
	case !ok || m.Kind == pyjson.Null:
		return ""
	case m.Kind == pyjson.String:
		return m.Text
	}
	return text.Clip(m.String(), maxTraceback)
}

// unixTime reads seconds as int() does from a number or a string; zero where
// that is not a sensible time.
func unixTime(v *pyjson.Value) time.Time {
	text := strings.ReplaceAll(strings.TrimSpace(v.Text), "_", "")
	if v.Kind != pyjson.String && v.Kind != pyjson.Number || len(text) > 40 {
		return time.Time{}
	}
	sec, err := strconv.ParseFloat(text, 64)
	if err != nil || !(sec >= 1 && sec < 1<<36) {
		return time.Time{}
	}
	return time.Unix(int64(sec), 0)
}

// errorData builds a document of the object form.
func errorData(message, callstack string, at time.Time) pyjson.Value {
	return pyjson.Dict(pyjson.Member{Key: "message", Value: pyjson.Dict(
		pyjson.Member{Key: "message", Value: pyjson.Str(message)},
		pyjson.Member{Key: "extraInfo", Value: pyjson.Dict(
			pyjson.Member{Key: "py_callstack", Value: pyjson.Str(callstack)},
			pyjson.Member{Key: "timestamp", Value: pyjson.Str(strconv.FormatInt(at.Unix(), 10))},
		)},
	)})
}
