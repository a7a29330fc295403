package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// parseSize reads a number of bytes: digits, and K, M, G or T for powers of 1024,
// with or without B or iB behind it.
func parseSize(text string) (int64, error) {
	digits := text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
	shift := 0
	switch strings.ToUpper(text[len(digits):]) {
	case "", "B":
	case "K", "KB", "KIB":
		shift = 10
	case "M", "MB", "MIB":
		shift = 20
	case "G", "GB", "GIB":
		shift = 30
	case "T", "TB", "TIB":
		shift = 40
	default:
		digits = ""
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("invalid size %s; want a number of bytes, with K, M, G or T for powers of 1024: 10M",
			quote(text))
	}
	return n << shift, nil
}
