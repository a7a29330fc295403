package console

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/wait/steady"
)

// NewLogger makes the program's logger: TorchElastic's lines on w, from the
// level on that LOGLEVEL names (default WARNING).
func NewLogger(w io.Writer, lookup func(string) (string, bool)) (*slog.Logger, error) {
	level := slog.LevelWarn
	var err error
	if text, ok := lookup("LOGLEVEL"); ok && text != "" {
		if level, ok = parseLevel(text); !ok {
			err = fmt.Errorf("LOGLEVEL=%s is not a level; want DEBUG, INFO, WARNING, ERROR or CRITICAL", Quote(text))
		}
	}
	f, ok := w.(*os.File)
	return slog.New(&LogHandler{Out: &steady.Writer{W: w}, Level: level, terminal: ok && IsTerminal(f)}), err
}

// jsonAttr writes levels as LOGLEVEL has them, and what has a text as that text, with options.
func jsonAttr(_ []string, a slog.Attr) slog.Attr {
	switch value := a.Value.Any().(type) {
	case slog.Level:
		a.Value = slog.StringValue(levelName(value))
	case time.Time:
	case fmt.Stringer, error, string:
		a.Value = slog.StringValue(text.AsOptions.Replace(fmt.Sprint(value)))
	}
	return a
}

// levelCritical is Python's CRITICAL.
const levelCritical = slog.LevelError + 4

// levels are those of Python's logging, each with its names, of which the first is shown.
var levels = []struct {
	level slog.Level
	names []string
}{
	{levelCritical, []string{"CRITICAL", "FATAL"}},
	{slog.LevelError, []string{"ERROR"}},
	{slog.LevelWarn, []string{"WARNING", "WARN"}},
	{slog.LevelInfo, []string{"INFO"}},
	{slog.LevelDebug, []string{"DEBUG", "NOTSET"}},
}

// parseLevel reads a level's name, in any case. An unknown one gives the default.
func parseLevel(name string) (slog.Level, bool) {
	for _, l := range levels {
		if slices.Contains(l.names, strings.ToUpper(name)) {
			return l.level, true
		}
	}
	return slog.LevelWarn, false
}

// levelName is a level as parseLevel reads it.
func levelName(level slog.Level) string {
	for _, l := range levels {
		if level >= l.level {
			return l.names[0]
		}
	}
	return "DEBUG"
}

// A LogHandler writes records in the format of TorchElastic's loggers, each line
// of a message with the prefix, options for fields, and warnings and errors with their ID at the end:
//
//	W1121 06:53:51.123000 4242 muster/agent] text key=value [M1001]
type LogHandler struct {
	Out      *steady.Writer
	Level    slog.Level
	json     slog.Handler // writes the lines instead; nil for text
	terminal bool         // values of a long line have lines of their own
	attrs    string       // " key=value", of With
	group    string       // "group." before the keys that follow
}

// longLine is how many bytes of a record a person still reads in one line.
const longLine = 120

func (h *LogHandler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.Level }

func (h *LogHandler) Handle(_ context.Context, record slog.Record) error {
	if record.Message == agent.JobFailed {
		return nil // the report says it
	}
	record.Message = text.AsOptions.Replace(record.Message)
	id := ""
	if record.Level >= slog.LevelWarn {
		id = tag(record.Message)
	}
	if h.json != nil {
		record = record.Clone()
		record.AddAttrs(slog.String("logger", source(record.PC)))
		if id != "" {
			record.AddAttrs(slog.String("id", strings.Trim(id, " []")))
		}
		return h.json.Handle(context.Background(), record)
	}
	var attrs, block, out strings.Builder
	record.Attrs(func(a slog.Attr) bool {
		appendAttr(&attrs, h.group, a)
		if value := text.AsOptions.Replace(a.Value.Resolve().String()); a.Key != "" && value != "" {
			block.WriteString("\n    " + h.group + a.Key + ": " + text.Line(value, len(value)))
		}
		return true
	})
	prefix := logPrefix(record)
	message := record.Message + h.attrs + attrs.String() + id
	if h.terminal && attrs.Len() > 0 && len(prefix)+len(message) > longLine {
		_, err := io.WriteString(h.Out, prefix+text.Lines(record.Message+h.attrs+id+block.String()+"\n"))
		return err
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(text.Lines(message), "\n"), "\n") {
		out.WriteString(prefix + line + "\n")
	}
	_, err := io.WriteString(h.Out, out.String())
	return err
}

func (h *LogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	if h.json != nil {
		with.json = h.json.WithAttrs(attrs)
	}
	var text strings.Builder
	text.WriteString(h.attrs)
	for _, a := range attrs {
		appendAttr(&text, h.group, a)
	}
	with.attrs = text.String()
	return &with
}

func (h *LogHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	with := *h
	if h.json != nil {
		with.json = h.json.WithGroup(name)
	}
	with.group += name + "."
	return &with
}

// appendAttr writes " key=value", quoted where it would not be one word.
func appendAttr(b *strings.Builder, group string, a slog.Attr) {
	value := a.Value.Resolve()
	switch {
	case value.Kind() == slog.KindGroup:
		if a.Key != "" {
			group += a.Key + "."
		}
		for _, member := range value.Group() {
			appendAttr(b, group, member)
		}
		return
	case a.Key == "":
		return
	}
	said := text.AsOptions.Replace(value.String())
	if said == "" || strings.ContainsFunc(said, func(r rune) bool { return r == ' ' || r == '"' || !unicode.IsPrint(r) }) {
		said = strconv.Quote(said)
	}
	b.WriteString(" " + group + a.Key + "=" + said)
}

// logPrefix is what every line of a record begins with.
func logPrefix(record slog.Record) string {
	at := record.Time
	if at.IsZero() {
		at = time.Now()
	}
	return levelName(record.Level)[:1] + at.Format("0102 15:04:05.000000") + " " + strconv.Itoa(os.Getpid()) + " " +
		source(record.PC) + "] "
}

// source names the package that logged, as people know it: muster/agent, muster/cli.
func source(pc uintptr) string {
	if pc == 0 {
		return "muster"
	}
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return known(frame.Function)
}

// known is the source of a function, by its full name.
func known(function string) string {
	name := strings.TrimPrefix(function, "github.com/muster-run/")
	if outer, inner, found := strings.Cut(name, "/internal/"); found {
		if outer == "muster/agent" {
			return outer // people know it and its parts by one name
		}
		name = "muster/" + inner[strings.LastIndexByte(inner, '/')+1:]
	}
	slash := strings.LastIndexByte(name, '/') + 1
	if dot := strings.IndexByte(name[slash:], '.'); dot >= 0 {
		name = name[:slash+dot]
	}
	if name == "muster/runline" {
		return "muster/cli" // which is how people know the command line
	}
	return name
}

// UseJSON makes each record an object. Level is what it is for good.
func (h *LogHandler) UseJSON() {
	h.json = slog.NewJSONHandler(h.Out, &slog.HandlerOptions{Level: h.Level, ReplaceAttr: jsonAttr}).
		WithAttrs([]slog.Attr{slog.Int("agent_pid", os.Getpid())})
}
