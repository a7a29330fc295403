// Package text writes numbers and names for people to read, cleans what others have
// written, and guesses what a mistyped word means.
package text

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Count writes a number of things: "1 host", "2 hosts".
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}

// Size writes a number of bytes: "812 B", "1.2 GiB".
func Size[N int | int64 | uint64](n N) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, units := float64(n)/1024, "KMGTPE"
	for f >= 1023.5 {
		f, units = f/1024, units[1:]
	}
	if f < 10 {
		return fmt.Sprintf("%.1f %ciB", f, units[0])
	}
	return fmt.Sprintf("%.0f %ciB", f, units[0])
}

// Ranges writes sorted numbers in short, with sep between them: "0-2,5".
func Ranges(numbers []int, sep string) string {
	var b strings.Builder
	for i := 0; i < len(numbers); {
		end := i + 1
		for end < len(numbers) && numbers[end] == numbers[end-1]+1 {
			end++
		}
		if i > 0 {
			b.WriteString(sep)
		}
		b.WriteString(strconv.Itoa(numbers[i]))
		if end > i+1 {
			b.WriteString("-" + strconv.Itoa(numbers[end-1]))
		}
		i = end
	}
	return b.String()
}

// Clip shortens s to limit characters and an ellipsis.
func Clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	n := 0
	for i := range s {
		if n++; n > limit {
			return s[:i] + "..."
		}
	}
	return s
}

// Seconds turns a time with units, such as 90s, 10m or 1h30m, into its number of seconds
// as text. Any other text stays as it is.
func Seconds(s string) string {
	d, err := time.ParseDuration(s)
	if err != nil {
		return s
	}
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64)
}

// Columns writes rows with their columns below each other, each line after indent. A
// cell of more than widest runes does not make its column wider.
func Columns(w io.Writer, indent string, widest int, rows [][]string) error {
	widths := map[int]int{}
	for _, row := range rows {
		for i, cell := range row {
			if n := len([]rune(cell)); n <= widest {
				widths[i] = max(widths[i], n)
			}
		}
	}
	var b strings.Builder
	for _, row := range rows {
		line := indent
		for i, cell := range row {
			line += fmt.Sprintf("%-*s  ", widths[i], cell)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
