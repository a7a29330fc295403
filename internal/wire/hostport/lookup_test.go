package hostport_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/wire/hostport"
)

// A name that only the system's resolver knows is found by getent; one that nobody knows has the
// error of Go's.
func TestLookup(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\n[ \"$*\" = 'ahosts spark0.invalid' ] || exit 2\n" +
		"echo '10.77.0.11      STREAM spark0.invalid'\necho '10.77.0.11 DGRAM'\necho '::ffff:10.77.0.12 RAW'\n"
	if err := os.WriteFile(filepath.Join(dir, "getent"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	got, err := hostport.Lookup(t.Context(), "spark0.invalid")
	if want := []netip.Addr{netip.MustParseAddr("10.77.0.11"), netip.MustParseAddr("10.77.0.12")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if got, err := hostport.Lookup(t.Context(), "spark1.invalid"); err == nil || !strings.Contains(err.Error(), "spark1.invalid") {
		t.Errorf("a name that nobody knows: %v, %v", got, err)
	}
	if got, err := hostport.Lookup(t.Context(), "::ffff:10.0.0.1"); err != nil || len(got) != 1 || got[0].String() != "10.0.0.1" {
		t.Errorf("an address: %v, %v", got, err)
	}
}
