package doctest

import "testing"

func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		name, page, printed string
		loose, want         bool
	}{
		{"the same", "a\nb", "a\nb\n", false, true},
		{"another", "a\nb", "a\nc\n", false, false},
		{"less", "a\nb", "a\n", false, false},
		{"more", "a\nb", "a\nb\nc\n", false, false},
		{"any lines", "a\n…\nb\n…", "a\nx\nb\nb\n", false, true},
		{"any lines, none", "a\n  …\nb", "a\nb\n", false, true},
		{"nothing else", "a\n…\nb", "a\nx\nb\nx\n", false, false},
		{"any text", "id  7c1g… of a", "id 7c1g-99 of a", false, true},
		{"other text", "id 7c1g… of a", "id 8c1g-99 of a", false, false},
		{"times", "W1121 09:10:17.180709 19507 x] 12 min 2 s (239µs)", "W0102 23:59:59.000000 7 x] 0.1 s (1ms)", false, true},
		{"a number of something", "rank 1, pid 12", "rank 2, pid 12", false, false},
		{"pids", "rank 1, pid 12", "rank 1, pid 13", false, true},
		{"a run's directory", "/data/logs/train.py_l_48mmxa/attempt_0", "/tmp/logs/train.py_758eb_61/attempt_0", false, true},
		{"the directory of a run", "/data/logs/7c1f…_l_48mmxa", "/tmp/logs/996a1922-7050-482a-b442-f70f284e8dd5_758eb_61", false, true},
		{"run IDs", "run id 7c1f…", "run id 996a1922-7050-482a-b442-f70f284e8dd5", false, true},
		{"no pattern", "a.b (c)", "axb (c)", false, false},
		{"indent", "  a", "a", false, false},
		{"columns", "  a    12 s  c", "  a  120 s  c", false, true},
		{"another order", "a\nb", "b\na\n", true, true},
		{"another order, twice", "a\na", "a\nb\n", true, false},
		{"another order, more", "a\nb", "b\nc\na\n", true, false},
		{"another order, any lines", "a\n…\nb", "b\nc\na\n", true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := Compare(tt.page, tt.printed, tt.loose); (err == nil) != tt.want {
				t.Errorf("got %v, want equal: %v", err, tt.want)
			}
		})
	}
}
