package logs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Std is a set of standard streams, a bit mask.
// Source: Std in torch/distributed/elastic/multiprocessing/api.py.
type Std uint8

const (
	StdNone Std = 0
	StdOut  Std = 1
	StdErr  Std = 2
	StdAll  Std = StdOut | StdErr
)

// String returns the name that TorchElastic gives to s: NONE, OUT, ERR or ALL.
func (s Std) String() string {
	switch s {
	case StdNone:
		return "NONE"
	case StdOut:
		return "OUT"
	case StdErr:
		return "ERR"
	case StdAll:
		return "ALL"
	}
	return "Std(" + strconv.Itoa(int(s)) + ")"
}

// A StdSpec says which streams are meant for each local rank. The zero value
// means none for every rank. A StdSpec does not change once made.
type StdSpec struct {
	all    Std
	byRank map[int]Std // not nil: only these, all is StdNone
}

// Any says whether any local rank has a stream.
func (s StdSpec) Any() bool { return s.all != StdNone || len(s.byRank) > 0 }

// StdForAll returns the spec that gives s to every local rank.
func StdForAll(s Std) StdSpec { return StdSpec{all: s} }

// StdByRank returns the spec that gives m[r] to local rank r, and nothing to
// the ranks that m lacks.
func StdByRank(m map[int]Std) StdSpec {
	if m == nil {
		return StdSpec{}
	}
	return StdSpec{byRank: maps.Clone(m)}
}

// A StdError is a text that ParseStd cannot read.
type StdError struct {
	Text   string // the whole text
	Reason string // what is wrong with it
}

func (e *StdError) Error() string {
	return fmt.Sprintf("%.100q: %s; want one of 0 (none), 1 (stdout), 2 (stderr), 3 (both), or such a value for each local rank, like 0:3,1:2", e.Text, e.Reason)
}

// maxStdText bounds what ParseStd reads; maxLocalRank the ranks in it.
const (
	maxStdText   = 1 << 20
	maxLocalRank = 1 << 20
)

// ParseStd reads "0" to "3", one value for all local ranks, or a list like
// "0:3,10:1", where ranks not listed get nothing and the last of several
// entries for a rank counts. As in Python, one newline at the end does not
// matter. Unlike Python's, a rank may have any number of digits.
// An error is a *[StdError].
// Source: Std.from_str in torch/distributed/elastic/multiprocessing/api.py.
func ParseStd(text string) (StdSpec, error) {
	fail := func(format string, args ...any) (StdSpec, error) {
		return StdSpec{}, &StdError{Text: text, Reason: fmt.Sprintf(format, args...)}
	}
	if len(text) > maxStdText {
		return fail("%d bytes are too long", len(text))
	}
	body := strings.TrimSuffix(text, "\n")
	if body == "" {
		return fail("empty")
	}
	if !strings.ContainsAny(body, ":,") {
		s, err := parseMask(body)
		if err != nil {
			return fail("%v", err)
		}
		return StdSpec{all: s}, nil
	}
	byRank := make(map[int]Std)
	for entry := range strings.SplitSeq(body, ",") {
		rank, mask, ok := strings.Cut(entry, ":")
		if !ok {
			return fail("entry %.40q is not of the form rank:value", entry)
		}
		r, err := parseRank(rank)
		if err != nil {
			return fail("%v", err)
		}
		s, err := parseMask(mask)
		if err != nil {
			return fail("%v", err)
		}
		byRank[r] = s
	}
	return StdSpec{byRank: byRank}, nil
}

func parseMask(text string) (Std, error) {
	if len(text) == 1 && text[0] >= '0' && text[0] <= '3' {
		return Std(text[0] - '0'), nil
	}
	return 0, fmt.Errorf("value %.40q is not 0, 1, 2 or 3", text)
}

func parseRank(text string) (int, error) {
	if text == "" {
		return 0, errors.New("a local rank is missing before the colon")
	}
	n := 0
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("local rank %.40q is not a number", text)
		}
		if n = n*10 + int(c-'0'); n > maxLocalRank {
			return 0, fmt.Errorf("local rank %.40q is too large", text)
		}
	}
	return n, nil
}

// For returns the streams of one local rank.
func (s StdSpec) For(localRank int) Std {
	if s.byRank != nil {
		return s.byRank[localRank]
	}
	return s.all
}

// ToMap returns the streams of the local ranks 0 to n-1.
// Source: to_map in torch/distributed/elastic/multiprocessing/api.py.
func (s StdSpec) ToMap(n int) map[int]Std {
	m := make(map[int]Std, max(n, 0))
	for r := range max(n, 0) {
		m[r] = s.For(r)
	}
	return m
}

// String returns the spec as ParseStd reads it, ranks ascending.
func (s StdSpec) String() string {
	if len(s.byRank) == 0 {
		return strconv.Itoa(int(s.all))
	}
	var b strings.Builder
	for i, r := range slices.Sorted(maps.Keys(s.byRank)) {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%d:%d", r, s.byRank[r])
	}
	return b.String()
}

// Equal reports whether both specs give the same streams to every local rank.
func (s StdSpec) Equal(o StdSpec) bool {
	if s.byRank == nil && o.byRank == nil {
		return s.all == o.all
	}
	return s.all == o.all && s.covers(o) && o.covers(s)
}

// covers reports whether o gives to each rank that s lists what s gives.
func (s StdSpec) covers(o StdSpec) bool {
	for r, std := range s.byRank {
		if o.For(r) != std {
			return false
		}
	}
	return true
}

// check returns an error when s holds a stream that does not exist.
func (s StdSpec) check(name string) error {
	var errs []error
	if s.all > StdAll {
		errs = append(errs, fmt.Errorf("%s: %d is no set of streams; want 0 to 3", name, s.all))
	}
	for _, r := range slices.Sorted(maps.Keys(s.byRank)) {
		if s.byRank[r] > StdAll {
			errs = append(errs, fmt.Errorf("%s: local rank %d: %d is no set of streams; want 0 to 3", name, r, s.byRank[r]))
		}
	}
	return errors.Join(errs...)
}
