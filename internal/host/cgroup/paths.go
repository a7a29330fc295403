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
	"fmt"
	"io/fs"
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
	// CPUV1 is that of the CPU controller, CPUV1Root where it is mounted.
	CPUV1, CPUV1Root string
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
		case listed(controllers, "cpu"):
			p.CPUV1, p.CPUV1Root = find(mountinfo, "cgroup", "cpu", dir)
		}
	}
	return p
}

// CPUQuota returns how many CPUs this process and the others of its cgroups may use at a time, by their quotas and
// rounded up; 0 if there is no quota. root is the root of the file system.
func CPUQuota(root fs.FS) (least int) {
	read := func(path string) string {
		text, _ := fs.ReadFile(root, strings.TrimPrefix(path, "/"))
		return string(text)
	}
	p := ParsePaths([]byte(read("/proc/self/mountinfo")), []byte(read("/proc/self/cgroup")))
	for dir, top := range map[string]string{p.Unified: p.UnifiedRoot, p.CPUV1: p.CPUV1Root} {
		for ; len(dir) >= len(top) && len(dir) > 1; dir = path.Dir(dir) {
			var quota, period int
			_, err := fmt.Sscan(read(dir+"/cpu.max")+read(dir+"/cpu.cfs_quota_us")+read(dir+"/cpu.cfs_period_us"), &quota, &period)
			if cpus := (quota + max(period, 1) - 1) / max(period, 1); err == nil && quota > 0 && (least == 0 || cpus < least) {
				least = cpus
			}
		}
	}
	return least
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
