package timer

import "time"

// Plain makes servers of cfg use a Go timer in place of the kernel's: it works in a
// synctest bubble.
func Plain(cfg Config) Config {
	cfg.plain, cfg.bare = true, true
	return cfg
}

// Bare makes servers of cfg work without pidfds.
func Bare(cfg Config) Config {
	cfg.bare = true
	return cfg
}

// WithClock gives servers of cfg another wall clock.
func WithClock(cfg Config, now func() time.Time) Config {
	cfg.now = now
	return cfg
}

// ParseFast and ParseSlow are the two halves of ParseRequest.
var (
	ParseFast = parseFast
	ParseSlow = parseSlow
)
