package console

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestComplain(t *testing.T) {
	var b strings.Builder
	Complain(&b, true, Split(cmpErrors()), "`muster help run` shows the options")
	want := "\x1b[1;31merror:\x1b[0m a: b; c is wrong (from PET_TEE)\n\x1b[1;36mhint:\x1b[0m give 1, 2; or 3\n\x1b[1;31merror:\x1b[0m d\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func cmpErrors() error {
	twice := errors.New("d")
	return errors.Join(errors.New("a: b; c is wrong; want 1, 2; or 3 (from PET_TEE)"), twice, twice)
}
