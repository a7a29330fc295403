package text

import "strings"

// Distance counts the insertions, deletions, replacements and exchanges of
// neighbours that turn a into b.
func Distance(a, b string) int {
	before := make([]int, len(b)+1) // the row before the last
	last := make([]int, len(b)+1)
	row := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

// Nearest returns the word that is most like what was typed, "" if none is alike:
// at most a third of the longer one, or one letter, has to be changed, unless it is the
// one word that begins so, but for the last letter of five or more. A short word begins with
// the same letter. Case, dashes, underscores and blanks do not count.
func Nearest(typed string, words ...string) string {
	plain := strings.NewReplacer("-", "", "_", "", " ", "")
	length := len(typed)
	typed = plain.Replace(strings.ToLower(typed))
	if typed == "" || length > 64 {
		return ""
	}
	best, least, begins := "", 0, ""
	for _, word := range words {
		w := plain.Replace(strings.ToLower(word))
		if len(typed) > 1 && strings.HasPrefix(w, typed) || len(typed) > 4 && strings.HasPrefix(w, typed[:len(typed)-1]) {
			if begins != "" {
				begins = " "
			} else {
				begins = word
			}
		}
		limit := max(1, max(len(word), length)/3)
		if len(typed) < 5 && w[:1] != typed[:1] {
			continue // stop is not top
		}
		if d := Distance(w, typed); d <= limit && d < len(typed) && (best == "" || d < least) {
			best, least = word, d
		}
	}
	if best == "" && begins != " " {
		return begins
	}
	return best
}
