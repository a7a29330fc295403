package doctor_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/cmd/muster/internal/doctor"
)

const (
	gib       = 1 << 30
	unlimited = ^uint64(0)
)

// A host is what a fake System shows; healthy returns one without any fault.
type host struct {
	name   string
	env    map[string]string
	names  map[string]string // host to addresses
	ifaces []doctor.Interface
	files  fstest.MapFS
	disk   map[string]doctor.Disk // by path, else "" is meant
	write  map[string]error
	limits map[int]uint64 // hard
	few    error          // of Limits
	cgroup error
	euid   int
	run    map[string]string // program to output; those that begin with "!" fail
	kernel string
	bind   error
}

func healthy() *host {
	addrs := func(list ...string) (out []netip.Addr) {
		for _, a := range list {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	return &host{
		name:  "a",
		env:   map[string]string{"PATH": "/nowhere"},
		names: map[string]string{"a": "10.0.0.1", "b": "10.0.0.2"},
		ifaces: []doctor.Interface{
			{Name: "lo", MTU: 65536, Up: true, Loopback: true, Addrs: addrs("127.0.0.1", "::1")},
			{Name: "eth0", MTU: 1500, Up: true, Addrs: addrs("10.0.0.1")},
		},
		files: fstest.MapFS{
			"proc/meminfo":                        {Data: []byte("MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n")},
			"proc/self/status":                    {Data: []byte("Name:\tx\nCapEff:\t0000000000000000\n")},
			"dev/shm":                             {Mode: fs.ModeDir | 0o777},
			"sys/class/net/eth0/device/something": {},
		},
		disk:   map[string]doctor.Disk{"": {Size: 100 * gib, Free: 50 * gib}},
		write:  map[string]error{},
		limits: map[int]uint64{},
		run: map[string]string{"/env/python3": `MUSTER {"version": "3.12.1", "executable": "/env/python3", "files": 65536}
MUSTER {"torch": "2.15.0", "seconds": 2, "cuda": "", "distributed": true, "gloo": true}`},
	}
}

func (h *host) system() *doctor.System {
	return &doctor.System{
		Hostname: func() (string, error) { return h.name, nil },
		Lookup:   func(name string) (string, bool) { v, ok := h.env[name]; return v, ok },
		LookupHost: func(_ context.Context, name string) (list []netip.Addr, err error) {
			text, ok := h.names[name]
			switch {
			case !ok:
				return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
			case text == "silence":
				return nil, &net.DNSError{Err: "i/o timeout", Name: name, IsTimeout: true}
			}
			for a := range strings.FieldsSeq(text) {
				list = append(list, netip.MustParseAddr(a))
			}
			return list, nil
		},
		Interfaces: func() ([]doctor.Interface, error) { return h.ifaces, nil },
		Dial: func(context.Context, string, int) (net.Conn, error) {
			return nil, errors.New("nothing is dialled here")
		},
		TryBind: func(string, int) error { return h.bind },
		Root:    h.files,
		Disk: func(path string) (doctor.Disk, error) {
			if d, ok := h.disk[path]; ok {
				return d, nil
			}
			return h.disk[""], nil
		},
		TryWrite: func(dir string, _ int) error { return h.write[dir] },
		RLimit: func(resource int) (uint64, uint64, error) {
			if n, ok := h.limits[resource]; ok {
				return n, n, nil
			}
			return unlimited, unlimited, nil
		},
		Limits:    func(int) error { return h.few },
		TryCgroup: func() error { return h.cgroup },
		Geteuid:   func() int { return h.euid },
		Run: func(_ context.Context, program string, args ...string) ([]byte, []byte, error) {
			if args[0] == "ahosts" {
				program += " " + args[1]
			}
			out, ok := h.run[program]
			complaint, fails := strings.CutPrefix(out, "!")
			switch {
			case !ok:
				return nil, nil, &exec.Error{Name: program, Err: exec.ErrNotFound}
			case fails:
				before, after, _ := strings.Cut(complaint, "!")
				return []byte(after), []byte(before), errors.New("exit status 1")
			}
			return []byte(out), nil, nil
		},
		KernelLog: func(each func(string)) {
			for record := range strings.Lines(h.kernel) {
				each(record)
			}
		},
	}
}

// found is what doctor says of a host: lines of one check, "status: text → advice".
func (h *host) found(t *testing.T, cfg doctor.Config, check string) (lines []string) {
	t.Helper()
	return h.foundBy(t, h.system(), cfg, check)
}

// foundBy is the same of a system that is not quite as the host has it.
func (h *host) foundBy(t *testing.T, s *doctor.System, cfg doctor.Config, check string) (lines []string) {
	t.Helper()
	cfg.System = s
	if cfg.Workers.Count == 0 {
		cfg.Workers.Count = 1
	}
	if cfg.MaxNodes == 0 {
		cfg.MinNodes, cfg.MaxNodes = 1, 1
	}
	if cfg.Python.Path == "" && cfg.Python.Err == nil {
		cfg.Python.Path = "/env/python3"
	}
	for _, l := range doctor.Run(t.Context(), cfg).Lines {
		if l.Check == check {
			text := string(l.Status) + ": " + l.Text
			if l.Advice != "" {
				text += " → " + l.Advice
			}
			lines = append(lines, text)
		}
	}
	return lines
}

// same compares lines, where want may give the beginning of one, ended by "…".
func same(t *testing.T, got, want []string) {
	t.Helper()
	cut := slices.Clone(got)
	for i := range cut {
		if i < len(want) {
			if start, open := strings.CutSuffix(want[i], "…"); open && strings.HasPrefix(cut[i], start) {
				cut[i] = want[i]
			}
		}
	}
	if d := cmp.Diff(want, cut); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func show(r doctor.Report) string {
	var b strings.Builder
	_ = r.WriteText(&b)
	return b.String()
}
