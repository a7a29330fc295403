package launch

import (
	"log/slog"
	"testing"
	"time"
)

// A drill cuts a host off for no longer than it has to.
func TestDrillBounds(t *testing.T) {
	c := &control{log: slog.New(slog.DiscardHandler)}
	for length, ok := range map[time.Duration]bool{-time.Second: false, 0: false, time.Second: true, 10 * time.Minute: true, 10*time.Minute + 1: false, time.Hour: false} {
		if _, err := c.Drill("cut-host", "host2", length); (err == nil) != ok {
			t.Errorf("for %v: %v", length, err)
		}
	}
}
