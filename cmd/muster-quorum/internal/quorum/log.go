package quorum

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapLogger is etcd's logger, with slog behind it: warnings and worse only.
func zapLogger(logger *slog.Logger) *zap.Logger {
	return zap.New(&core{handler: logger.Handler()})
}

// core is a zapcore.Core over a slog.Handler.
type core struct{ handler slog.Handler }

func (c *core) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{c.handler.WithAttrs(attrs(fields))}
}

func (c *core) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelWarn
	if e.Level > zapcore.WarnLevel {
		level = slog.LevelError
	}
	r := slog.NewRecord(e.Time, level, "etcd: "+e.Message, 0)
	r.AddAttrs(attrs(fields)...)
	return c.handler.Handle(context.Background(), r)
}

func (c *core) Sync() error { return nil }

func attrs(fields []zapcore.Field) []slog.Attr {
	m := zapcore.NewMapObjectEncoder()
	out := make([]slog.Attr, 0, len(fields))
	for _, f := range fields {
		f.AddTo(m)
		out = append(out, slog.Any(f.Key, m.Fields[f.Key]))
	}
	return out
}
