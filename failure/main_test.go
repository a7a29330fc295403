package failure_test

import (
	"io"
	"log/slog"
	"os"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	os.Exit(m.Run())
}

// noon is when things happen in these tests.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 500_000_000, time.UTC)
