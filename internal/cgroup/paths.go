// Package cgroup makes cgroups (version 2) for workers to run in, so that all
// their descendants can be listed and killed, whatever they did to get away, and
// reads the kernel's counters of processes killed for lack of memory, of both
// versions. It needs no daemon: a cgroup is made below the one that this process
// is in, where it may do that.
//
// It sets no limits and enables no controllers.
package cgroup

import (
	"bytes"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Paths are the directories of the cgroups that a process is in. A field is empty
// where there is none, or none that can be seen.
type Paths struct {
	// Unified is the directory in the version 2 hierarchy, UnifiedRoot where that
	// hierarchy is mounted.
	Unified, UnifiedRoot string
	// MemoryV1 is the directory in the version 1 hierarchy of the memory
	// controller.
	MemoryV1 string
}

// ParsePaths reads the texts of /proc/self/mountinfo and /proc/self/cgroup.
func ParsePaths(mountinfo, cgroups []byte) Paths {
	var p Paths
	for line := range bytes.Lines(cgroups) {
		id, rest, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), ":")
		controllers, dir, ok2 := strings.Cut(rest, ":")
		if !ok || !ok2 {
			continue
		}
		switch {
		case id == "0" && controllers == "":
			p.Unified, p.UnifiedRoot = find(mountinfo, "cgroup2", "", dir)
		case listed(controllers, "memory"):
			p.MemoryV1, _ = find(mountinfo, "cgroup", "memory", dir)
		}
	}
	return p
}

// find returns where a cgroup's directory is, and the mount point it is below.
func find(mountinfo []byte, fstype, option, dir string) (found, mount string) {
	for line := range bytes.Lines(mountinfo) {
		before, after, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), " - ")
		head, tail := strings.Fields(before), strings.Fields(after)
		if !ok || len(head) < 5 || len(tail) < 3 || tail[0] != fstype || option != "" && !listed(tail[2], option) {
			continue
		}
		// A mount may show only a part of the hierarchy, from its root down.
		root, point := unescape(head[3]), unescape(head[4])
		rest, ok := strings.CutPrefix(dir, strings.TrimSuffix(root, "/"))
		if !ok || rest != "" && rest[0] != '/' {
			continue
		}
		// Later mounts may cover earlier ones.
		found, mount = path.Join(point, rest), point
	}
	return found, mount
}

func listed(list, word string) bool { return slices.Contains(strings.Split(list, ","), word) }

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
