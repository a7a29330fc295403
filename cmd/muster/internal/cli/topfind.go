package cli

import (
	"path/filepath"
	"strings"

	"github.com/muster-run/muster/launch"
)

// A found agent runs on this host and serves its job's health.
type foundAgent struct {
	pid   int
	addrs []string // as --health-addr has them; several where the port was left open
}

// splitNul takes a file of /proc apart.
func splitNul(b []byte) []string {
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}

// agentArgs returns the arguments of `muster run`, or of torchrun if that is
// muster.
func agentArgs(cmdline []string) (args []string, ok bool) {
	switch base := filepath.Base(cmdline[0]); {
	case base == "muster" && len(cmdline) > 1 && cmdline[1] == "run":
		return cmdline[2:], true
	case base == torchrunName: // that of Python is an argument of python3
		return cmdline[1:], true
	}
	return nil, false
}

// healthAddr returns where an agent that was started so serves its job's health,
// "" for nowhere.
func healthAddr(args, environ []string) string {
	lookup := (&launch.Config{Env: environ}).LookupEnv
	l, _ := parseLine(args)
	v, _ := weigh(l, lookup) // what is wrong elsewhere is no matter
	if addr := v.text("health-addr"); addr != "" {
		return addr
	}
	port, _ := lookup(envHealthPort)
	return port
}

// absoluteAddr makes a socket's path independent of the directory in which the
// agent runs.
func absoluteAddr(addr, dir string) string {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok && path != "" && !filepath.IsAbs(path) {
		return "unix:" + filepath.Join(dir, path)
	}
	return addr
}
