//go:build !linux

package timer

func newAlarm(cfg Config) alarm { return newGoAlarm(cfg.now, cfg.MaxInterval) }
