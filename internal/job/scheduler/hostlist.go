package scheduler

import (
	"fmt"
	"strconv"
	"strings"
)

// maxHostName bounds a host's name, as DNS does.
const maxHostName = 253

// expandHostlist writes out Slurm's short form of a list of hosts, such as
// "n[0-3,07-09],x1" or "rack[1-2]node[01-16]-ib". Brackets may occur several times
// in a name, the last one varies first. Numbers keep the width of their range's
// first one. The list is never longer than maxHosts.
// Source: hostlist_create in slurm's src/common/hostlist.c.
func expandHostlist(text string) ([]string, error) {
	var hosts []string
	for _, item := range splitOutside(text) {
		if item = strings.TrimSpace(item); item == "" {
			return nil, fmt.Errorf("host list %s: an item is empty", show(text))
		}
		expanded, err := expandName(item, maxHosts-len(hosts))
		if err != nil {
			return nil, fmt.Errorf("host list %s: %w", show(text), err)
		}
		hosts = append(hosts, expanded...)
	}
	return hosts, nil
}

// splitOutside splits at the commas that no bracket holds.
func splitOutside(text string) []string {
	var items []string
	depth, begin := 0, 0
	for i := range len(text) {
		switch c := text[i]; {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case c == ',' && depth <= 0:
			items = append(items, text[begin:i])
			begin = i + 1
		}
	}
	return append(items, text[begin:])
}

// expandName writes out one name with its brackets, at most most names.
func expandName(item string, most int) ([]string, error) {
	names := []string{""}
	for rest := item; rest != ""; {
		plain, after, bracket := strings.Cut(rest, "[")
		if strings.ContainsAny(plain, "] \t\r\n\x00") {
			return nil, fmt.Errorf("%s is not a host name", show(plain))
		}
		var numbers []string
		if bracket {
			inside, end, closed := strings.Cut(after, "]")
			if !closed {
				return nil, fmt.Errorf("%s: a bracket is not closed", show(item))
			}
			var err error
			if numbers, err = expandRanges(inside, most/len(names)); err != nil {
				return nil, err
			}
			rest = end
		} else {
			numbers, rest = []string{""}, ""
		}
		longer := make([]string, 0, len(names)*len(numbers))
		for _, name := range names {
			for _, number := range numbers {
				longer = append(longer, name+plain+number)
			}
		}
		if names = longer; len(names[0]) > maxHostName {
			return nil, fmt.Errorf("%s: a host name has at most %d characters", show(item), maxHostName)
		}
	}
	if len(names) > most {
		return nil, tooMany()
	}
	return names, nil
}

// expandRanges writes out what stands between brackets: "0-3,07-09".
func expandRanges(text string, most int) ([]string, error) {
	var numbers []string
	for part := range strings.SplitSeq(text, ",") {
		from, to, ranged := strings.Cut(part, "-")
		if !ranged {
			to = from
		}
		first, err1 := parseDigits(from)
		last, err2 := parseDigits(to)
		switch {
		case err1 != nil || err2 != nil:
			return nil, fmt.Errorf("[%s]: %s is not a number or range of numbers", cut(text), show(part))
		case last < first:
			return nil, fmt.Errorf("[%s]: the range %s ends before it begins", cut(text), show(part))
		case last-first >= most-len(numbers):
			return nil, tooMany()
		}
		for n := first; n <= last; n++ {
			numbers = append(numbers, fmt.Sprintf("%0*d", len(from), n))
		}
	}
	return numbers, nil
}

func tooMany() error { return fmt.Errorf("more than %d hosts", maxHosts) }

// cut is text, no more than a line's worth of it.
func cut(text string) string {
	quoted := show(text)
	return quoted[1 : len(quoted)-1]
}

// parseDigits reads a number of digits only, at most 18 of them.
func parseDigits(text string) (int, error) {
	if text == "" || len(text) > 18 || strings.Trim(text, "0123456789") != "" {
		return 0, fmt.Errorf("%s is not a number", show(text))
	}
	return strconv.Atoi(text)
}

// largestCount reads Slurm's short form of one number per host, such as "2(x3),1".
func largestCount(text string) (largest int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		number, times, repeated := strings.Cut(part, "(x")
		if !repeated {
			times = "1)"
		}
		n, err1 := parseDigits(number)
		repeat, err2 := parseDigits(strings.TrimSuffix(times, ")"))
		if err1 != nil || err2 != nil || !strings.HasSuffix(times, ")") || repeat < 1 {
			return 0, fmt.Errorf("%s: %s is not in N or N(xTIMES) format", show(text), show(part))
		}
		largest = max(largest, n)
	}
	return largest, nil
}
