package cli

import "testing"

func TestParseSize(t *testing.T) {
	for _, tt := range []struct {
		text string
		want int64 // -1: an error
	}{
		{"1", 1}, {"10k", 10 << 10}, {"10M", 10 << 20}, {"1G", 1 << 30}, {"1GB", 1 << 30}, {"2GiB", 2 << 30}, {"1t", 1 << 40}, {"0", 0},
		{"", -1}, {"M", -1}, {"-1M", -1}, {"1.5G", -1}, {"1X", -1}, {"1MM", -1}, {" 1M", -1}, {"1 M", -1}, {"9999999999999", 9999999999999}, {"9999999999999G", -1},
		{"99999999999999999999", -1}, {"é", -1}, {"1é", -1}, {"8388608T", -1}, {"1ſ", -1},
	} {
		got, err := parseSize(tt.text)
		if err != nil {
			got = -1
		}
		if got != tt.want {
			t.Errorf("parseSize(%q) = %d, %v, want %d", tt.text, got, err, tt.want)
		}
	}
}
