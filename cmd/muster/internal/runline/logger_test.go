package runline

import (
	"io"
	"log/slog"
	"testing"
)

// --verbose and --quiet count, whatever LOGLEVEL says.
func TestVerboseAndQuiet(t *testing.T) {
	for _, tt := range []struct {
		v    values
		want slog.Level
		err  bool
	}{
		{values{}, slog.LevelInfo, false},
		{values{"verbose": true}, slog.LevelDebug, false},
		{values{"quiet": true}, slog.LevelError, false},
		{values{"verbose": true, "quiet": true}, slog.LevelInfo, true},
	} {
		log, err := tt.v.logger(io.Discard, func(string) (string, bool) { return "INFO", true })
		if (err != nil) != tt.err {
			t.Errorf("%v: error %v", tt.v, err)
		}
		if !log.Enabled(t.Context(), tt.want) || log.Enabled(t.Context(), tt.want-1) {
			t.Errorf("%v: the level is not %v", tt.v, tt.want)
		}
	}
}
