//go:build linux

package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/muster-run/muster/internal/test/netlab"
)

// namespaces makes hosts out of namespaces; end ends them.
func (l *lab) namespaces(n int) (hosts *netlab.Lab, end func(), err error) {
	dir, err := os.MkdirTemp(l.dir, "hosts")
	if err != nil {
		return nil, nil, err
	}
	t := &hostsTest{dir: dir}
	defer func() {
		if f, failed := recover().(hostsFailure); failed {
			t.end()
			err = f.error
		}
	}()
	return netlab.New(t, n), t.end, nil
}

// A hostsTest is the test for which a netlab works.
type hostsTest struct {
	dir  string
	ends []func()
}

type hostsFailure struct{ error }

func (t *hostsTest) end() {
	for _, f := range slices.Backward(t.ends) {
		f()
	}
	t.ends = nil
}

func (t *hostsTest) Helper()          {}
func (t *hostsTest) TempDir() string  { return t.dir }
func (t *hostsTest) Cleanup(f func()) { t.ends = append(t.ends, f) }
func (t *hostsTest) Skip(args ...any) { panic(hostsFailure{fmt.Errorf("%s", fmt.Sprint(args...))}) }

func (t *hostsTest) Skipf(format string, args ...any) { t.Fatalf(format, args...) }
func (t *hostsTest) Fatalf(format string, args ...any) {
	panic(hostsFailure{fmt.Errorf(format, args...)})
}
func (t *hostsTest) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
