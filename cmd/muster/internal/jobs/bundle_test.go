package jobs

import "testing"

func TestParseSize(t *testing.T) {
	for _, tt := range []struct {
		text string
		want int64 // negative: an error
	}{
		{"0", 0}, {"10", 10}, {"64K", 64 << 10}, {"64k", 64 << 10}, {"8M", 8 << 20}, {"", -1}, {"K", -1}, {"-1", -1},
		{"1.5M", -1}, {"1KM", -1}, {"99999999999M", -1},
	} {
		got, err := parseSize(tt.text)
		if (err != nil) != (tt.want < 0) || err == nil && got != tt.want {
			t.Errorf("parseSize(%q) = %d, %v, want %d", tt.text, got, err, tt.want)
		}
	}
}
