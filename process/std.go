package process

import "github.com/muster-run/muster/logs"

// Std says which of a worker's output streams something applies to; see
// logs.Std.
type Std = logs.Std

// The values of Std.
const (
	StdNone = logs.StdNone
	StdOut  = logs.StdOut
	StdErr  = logs.StdErr
	StdAll  = logs.StdAll
)

// ParseStd reads the text of --redirects and --tee; see logs.ParseStd.
func ParseStd(text string) (logs.StdSpec, error) { return logs.ParseStd(text) }

// ToMap returns the Std of each of n local ranks.
// Source: to_map in multiprocessing/api.py.
func ToMap(spec logs.StdSpec, n int) map[int]Std { return spec.ToMap(n) }
