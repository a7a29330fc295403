package cgroup_test

import (
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/host/cgroup"
)

func TestParsePaths(t *testing.T) {
	const (
		unified = "25 1 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
		hybrid  = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n" +
			"35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n" +
			"36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n" +
			"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
		docker = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n" +
			"41 31 0:38 /docker/abc /sys/fs/cgroup/unified ro - cgroup2 cgroup2 rw\n"
		blank = `41 31 0:38 / /mnt/a\040b\134c rw - cgroup2 none rw` + "\n"
	)
	for _, tt := range []struct {
		name, mounts, cgroups string
		want                  cgroup.Paths
	}{
		{"unified", unified, "0::/user.slice/a.scope\n",
			cgroup.Paths{Unified: "/sys/fs/cgroup/user.slice/a.scope", UnifiedRoot: "/sys/fs/cgroup"}},
		{"root", unified, "0::/\n", cgroup.Paths{Unified: "/sys/fs/cgroup", UnifiedRoot: "/sys/fs/cgroup"}},
		{"hybrid", hybrid, "4:memory:/job/7\n2:cpu,cpuacct:/\n0::/\n",
			cgroup.Paths{Unified: "/sys/fs/cgroup/unified", UnifiedRoot: "/sys/fs/cgroup/unified", MemoryV1: "/sys/fs/cgroup/memory/job/7",
				CPUV1: "/sys/fs/cgroup/cpu", CPUV1Root: "/sys/fs/cgroup/cpu"}},
		{"a container sees its part", docker, "4:memory:/docker/abc\n0::/docker/abc/sub\n",
			cgroup.Paths{Unified: "/sys/fs/cgroup/unified/sub", UnifiedRoot: "/sys/fs/cgroup/unified", MemoryV1: "/sys/fs/cgroup/memory"}},
		{"a cgroup outside of what the mount shows", docker, "4:memory:/docker/abcdef\n0::/other\n", cgroup.Paths{}},
		{"escapes", blank, "0::/x\n", cgroup.Paths{Unified: "/mnt/a b\\c/x", UnifiedRoot: "/mnt/a b\\c"}},
		{"a colon in the name", unified, "0::/a:b\n", cgroup.Paths{Unified: "/sys/fs/cgroup/a:b", UnifiedRoot: "/sys/fs/cgroup"}},
		{"nothing mounted", "", "0::/\n", cgroup.Paths{}},
		{"no cgroups", unified, "", cgroup.Paths{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, cgroup.ParsePaths([]byte(tt.mounts), []byte(tt.cgroups))); d != "" {
				t.Error(d)
			}
		})
	}
}

// The smallest quota of a cgroup and those above it counts, in each version.
func TestCPUQuota(t *testing.T) {
	const (
		v2 = "25 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
		v1 = "36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
	)
	for _, tt := range []struct {
		name, mounts, cgroups string
		files                 map[string]string
		want                  int
	}{
		{"version 2", v2, "0::/a/b\n", map[string]string{"a/b/cpu.max": "max 100000\n", "a/cpu.max": "250000 100000\n"}, 3},
		{"the smallest", v2, "0::/a/b\n", map[string]string{"a/b/cpu.max": "150000 100000\n", "a/cpu.max": "400000 100000\n"}, 2},
		{"of the container", v2, "0::/\n", map[string]string{"cpu.max": "800000 100000\n"}, 8},
		{"version 1", v1, "2:cpu,cpuacct:/pod/c\n", map[string]string{"cpu/pod/c/cpu.cfs_quota_us": "-1\n", "cpu/pod/c/cpu.cfs_period_us": "100000\n",
			"cpu/pod/cpu.cfs_quota_us": "50000\n", "cpu/pod/cpu.cfs_period_us": "100000\n"}, 1},
		{"none", v2, "0::/a\n", map[string]string{"a/cpu.max": "max 100000\n"}, 0},
		{"no cgroups", "", "", nil, 0},
	} {
		root := fstest.MapFS{"proc/self/mountinfo": {Data: []byte(tt.mounts)}, "proc/self/cgroup": {Data: []byte(tt.cgroups)}}
		for name, text := range tt.files {
			root["sys/fs/cgroup/"+name] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := cgroup.CPUQuota(root); got != tt.want {
			t.Errorf("%s: %d CPUs, want %d", tt.name, got, tt.want)
		}
	}
}

func FuzzParsePaths(f *testing.F) {
	f.Add([]byte("41 31 0:38 / /mnt/a\\040b rw - cgroup2 none rw\n"), []byte("0::/x\n4:memory:/\n"))
	f.Add([]byte("1 2 3 4 5 - cgroup"), []byte("0:"))
	f.Fuzz(func(t *testing.T, mountinfo, cgroups []byte) {
		p := cgroup.ParsePaths(mountinfo, cgroups)
		if (p.Unified == "") != (p.UnifiedRoot == "") {
			t.Errorf("got %+v", p)
		}
	})
}
