package console

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/launch"
)

func TestSplit(t *testing.T) {
	a, b, c := errors.New("a"), errors.New("b"), errors.New("c")
	got := Split(&launch.ConfigError{Err: errors.Join(a, errors.Join(b, nil, c))})
	if diff := cmp.Diff([]string{"a", "b", "c"}, strings.Split(errors.Join(got...).Error(), "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := Split(nil); got != nil {
		t.Errorf("split(nil) = %v", got)
	}
}
