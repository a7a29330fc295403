//go:build !linux

package timer

func newAlarm(cfg Config) alarm { return newClockAlarm(cfg.now, cfg.MaxInterval) }
