package metrics

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Merge makes one text in Prometheus' format of those that several hosts have made with
// WritePrometheus: each value gets a label with its host's number. Lines that are not in the
// format are left out.
func Merge(label string, texts map[int][]byte) []byte {
	all := scrape{}
	for _, number := range slices.Sorted(maps.Keys(texts)) {
		own := label + `="` + strconv.Itoa(number) + `"`
		family, begun := "", map[string]bool{}
		for line := range bytes.Lines(texts[number]) {
			text := strings.TrimSuffix(string(line), "\n")
			if about, ok := strings.CutPrefix(text, "# "); ok { // HELP name …, TYPE name …
				if words := strings.SplitN(about, " ", 3); len(words) == 3 {
					family = words[1]
					begun[family] = begun[family] || all[family] == nil
					if begun[family] {
						all[family] = append(all[family], line...)
					}
				}
				continue
			}
			at := strings.IndexAny(text, "{ ")
			if at < 0 || family == "" || !strings.HasPrefix(text, family) {
				continue
			}
			if text[at] == '{' {
				text = text[:at+1] + own + "," + text[at+1:]
			} else {
				text = text[:at] + "{" + own + "}" + text[at:]
			}
			all[family] = append(all[family], text+"\n"...)
		}
	}
	return all.text()
}
