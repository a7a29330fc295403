package jobs

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/muster-run/muster/cmd/muster/internal/console"
)

// What a command line says is never taken for one of muster's messages.
func TestRefusalHasNoID(t *testing.T) {
	const message = "tcpstore: connect to x"
	said := func(err error, last string) string {
		var b strings.Builder
		console.Complain(&b, false, console.Split(err), last)
		return b.String()
	}
	if got := said(errors.New(message), ""); !strings.Contains(got, " [M") {
		t.Fatalf("no ID: %s", got)
	}
	for _, got := range []string{
		said(errors.New(message), "`muster help run` shows the options"),
		said(fmt.Errorf("no directory, and %w", noJob(message)), ""),
	} {
		if strings.Contains(got, "[M") {
			t.Error(got)
		}
	}
}
