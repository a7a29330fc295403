package logs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Std is a set of standard streams, a bit mask; 0 is none of them.
// Source: Std in torch/distributed/elastic/multiprocessing/api.py.
type Std uint8

const (
	StdOut Std = 1 << iota
	StdErr
	StdAll = StdOut | StdErr
)

// String returns the name that TorchElastic gives to s: NONE, OUT, ERR or ALL.
func (s Std) String() string {
	if s > StdAll {
		return "Std(" + strconv.Itoa(int(s)) + ")"
	}
	return [...]string{"NONE", "OUT", "ERR", "ALL"}[s]
}

// A StdSpec says which streams are meant for each local rank. The zero value
// means none for every rank.
type StdSpec struct {
	All    Std         // what every local rank has, where ByRank is empty
	ByRank map[int]Std // what the local ranks in it have; the others have none
}

// For returns the streams of one local rank.
func (s StdSpec) For(localRank int) Std {
	if len(s.ByRank) > 0 {
		return s.ByRank[localRank]
	}
	return s.All
}

// Any reports whether the spec names a stream or a rank.
func (s StdSpec) Any() bool { return s.All != 0 || len(s.ByRank) > 0 }

// String returns the spec as ParseStd reads it, ranks ascending.
func (s StdSpec) String() string {
	if len(s.ByRank) == 0 {
		return strconv.Itoa(int(s.All))
	}
	var entries []string
	for _, r := range slices.Sorted(maps.Keys(s.ByRank)) {
		entries = append(entries, fmt.Sprintf("%d:%d", r, s.ByRank[r]))
	}
	return strings.Join(entries, ",")
}

// check returns an error when s holds a stream that does not exist.
func (s StdSpec) check(name string) error {
	var errs []error
	if s.All > StdAll {
		errs = append(errs, fmt.Errorf("%s: %d is not a set of streams; want 0 to 3", name, s.All))
	}
	for _, r := range slices.Sorted(maps.Keys(s.ByRank)) {
		if s.ByRank[r] > StdAll {
			errs = append(errs, fmt.Errorf("%s: local rank %d: %d is not a set of streams; want 0 to 3", name, r, s.ByRank[r]))
		}
	}
	return errors.Join(errs...)
}

// maxStdText bounds what ParseStd reads, in bytes, and rankBits the ranks in it.
const (
	maxStdText = 1 << 20
	rankBits   = 20
)

// ParseStd reads "0" to "3", one value for all local ranks, or a list like
// "0:3,10:1", where ranks not listed get nothing and the last of several
// entries for a rank counts. As in Python, one newline at the end does not
// matter. Unlike Python's, a rank may have any number of digits.
// Source: Std.from_str in torch/distributed/elastic/multiprocessing/api.py.
func ParseStd(text string) (StdSpec, error) {
	spec, err := parseSpec(strings.TrimSuffix(text, "\n"))
	if err != nil {
		return StdSpec{}, fmt.Errorf("%.100q: %w; want one of 0 (none), 1 (stdout), 2 (stderr), 3 (both), or such a "+
			"value for each local rank, like 0:3,1:2", text, err)
	}
	return spec, nil
}

func parseSpec(text string) (spec StdSpec, err error) {
	switch {
	case text == "":
		return spec, errors.New("empty")
	case len(text) > maxStdText:
		return spec, fmt.Errorf("%d bytes are too long", len(text))
	case !strings.ContainsAny(text, ":,"):
		spec.All, err = parseMask(text)
		return spec, err
	}
	spec.ByRank = make(map[int]Std)
	for entry := range strings.SplitSeq(text, ",") {
		rank, mask, ok := strings.Cut(entry, ":")
		n, err := strconv.ParseUint(rank, 10, rankBits)
		switch {
		case !ok:
			return spec, fmt.Errorf("entry %.40q is not of the form rank:value", entry)
		case rank == "":
			return spec, errors.New("a local rank is missing before the colon")
		case errors.Is(err, strconv.ErrRange):
			return spec, fmt.Errorf("local rank %.40q is too large", rank)
		case err != nil:
			return spec, fmt.Errorf("local rank %.40q is not a number", rank)
		}
		if spec.ByRank[int(n)], err = parseMask(mask); err != nil {
			return spec, err
		}
	}
	return spec, nil
}

func parseMask(text string) (Std, error) {
	if len(text) == 1 && text[0] >= '0' && text[0] <= '3' {
		return Std(text[0] - '0'), nil
	}
	return 0, fmt.Errorf("value %.40q is not 0, 1, 2 or 3", text)
}
