package numa_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/host/numa"
	"github.com/muster-run/muster/internal/test/pypeer"
)

// A machine describes a tree under /sys.
type machine struct {
	nodes   []string // cpulist of each NUMA node; "-" means that the node does not exist
	socket  []int    // of each CPU
	core    []string // siblings of each CPU
	cache   []string // CPUs that share the last-level cache of each CPU
	devices []int    // NUMA node of each device
}

func (m machine) fs() fstest.MapFS {
	root := fstest.MapFS{}
	put := func(name, text string) { root["sys/"+name] = &fstest.MapFile{Data: []byte(text + "\n")} }
	put("devices/system/node/possible", fmt.Sprintf("0-%d", len(m.nodes)-1))
	for n, list := range m.nodes {
		if list != "-" {
			put(fmt.Sprintf("devices/system/node/node%d/cpulist", n), list)
		}
	}
	for cpu := range m.socket {
		dir := fmt.Sprintf("devices/system/cpu/cpu%d/", cpu)
		put(dir+"topology/physical_package_id", strconv.Itoa(m.socket[cpu]))
		put(dir+"topology/thread_siblings_list", m.core[cpu])
		put(dir+"cache/index0/type", "Data")
		put(dir+"cache/index0/level", "1")
		put(dir+"cache/index0/shared_cpu_list", m.core[cpu])
		put(dir+"cache/index1/type", "Instruction")
		put(dir+"cache/index1/level", "9") // never looked at
		put(dir+"cache/index1/shared_cpu_list", "0-99")
		put(dir+"cache/index10/type", "Unified")
		put(dir+"cache/index10/level", "3")
		put(dir+"cache/index10/shared_cpu_list", m.cache[cpu])
		put(dir+"cache/uevent", "")
	}
	for i, node := range m.devices {
		put("bus/pci/devices/"+address(i)+"/numa_node", strconv.Itoa(node))
	}
	return root
}

func address(device int) string { return fmt.Sprintf("0000:%02x:00.0", device+1) }

func (m machine) topology(allowed []int) numa.Topology {
	t := numa.Topology{Root: m.fs(), Allowed: allowed}
	for i := range m.devices {
		t.Devices = append(t.Devices, address(i))
	}
	return t
}

func upTo(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// repeat makes a list of n values of f.
func repeat[T any](n int, f func(int) T) []T {
	list := make([]T, n)
	for i := range list {
		list[i] = f(i)
	}
	return list
}

// Two sockets of two nodes of four CPUs (two cores of two threads, i and i+1),
// one cache per node; devices 0, 1, 2 on node 1, device 3 on node 2, 4 on -1.
var twoSockets = machine{
	nodes:   []string{"0-3", "4-7", "8-11", "12-15"},
	socket:  repeat(16, func(i int) int { return i / 8 }),
	core:    repeat(16, func(i int) string { return fmt.Sprintf("%d-%d", i/2*2, i/2*2+1) }),
	cache:   repeat(16, func(i int) string { return fmt.Sprintf("%d-%d", i/4*4, i/4*4+3) }),
	devices: []int{1, 1, 2, -1},
}

// One node of twelve CPUs, threads at distance 6, caches of unequal size.
var oneNode = machine{
	nodes:  []string{"0-11"},
	socket: repeat(12, func(int) int { return 0 }),
	core:   repeat(12, func(i int) string { return fmt.Sprintf("%d,%d", i%6, i%6+6) }),
	cache: repeat(12, func(i int) string {
		if i%6 < 2 {
			return "0-1,6-7"
		}
		return "2-5,8-11"
	}),
	devices: []int{0, 0, -1, 0},
}

func TestBind(t *testing.T) {
	memoryOnly := twoSockets
	memoryOnly.nodes = append(slices.Clone(twoSockets.nodes), "", "-")
	tests := []struct {
		name    string
		machine machine
		allowed []int // nil: all
		mode    numa.Mode
		workers int
		want    []string
		err     string
	}{
		{name: "node", machine: twoSockets, mode: numa.Node, workers: 4, want: []string{"4-7", "4-7", "8-11", "0-3"}},
		{name: "fewer workers", machine: twoSockets, mode: numa.Node, workers: 1, want: []string{"4-7"}},
		{name: "node, some allowed", machine: twoSockets, allowed: []int{1, 5, 6, 9}, mode: numa.Node, workers: 4, want: []string{"5-6", "5-6", "9", "1"}},
		{name: "node, none allowed", machine: twoSockets, allowed: []int{0, 15}, mode: numa.Node, workers: 1, err: "non-empty set of CPU"},
		{name: "socket", machine: twoSockets, mode: numa.Socket, workers: 3, want: []string{"0-7", "0-7", "8-15"}},
		{name: "socket, some allowed", machine: twoSockets, allowed: []int{3, 4, 8, 12}, mode: numa.Socket, workers: 3, want: []string{"3-4", "3-4", "8,12"}},
		{name: "socket beside a node of memory only", machine: memoryOnly, mode: numa.Socket, workers: 1, want: []string{"0-7"}},
		{name: "exclusive", machine: twoSockets, mode: numa.Exclusive, workers: 4, want: []string{"4-5", "6-7", "8-11", "0-3"}},
		{name: "exclusive counts hidden workers' devices", machine: oneNode, mode: numa.Exclusive, workers: 1, want: []string{"0-1,6-7"}},
		{name: "exclusive shares unevenly", machine: oneNode, mode: numa.Exclusive, workers: 4,
			want: []string{"0-1,6-7", "2-3,8-9", "4,10", "5,11"}},
		{name: "exclusive, some allowed", machine: oneNode, allowed: []int{6, 1, 2, 3, 4, 10, 5}, mode: numa.Exclusive, workers: 4,
			want: []string{"1,6", "2-3", "4,10", "5"}},
		{name: "exclusive, too few cores", machine: oneNode, allowed: []int{0, 1, 2, 6, 7, 8}, mode: numa.Exclusive, workers: 4, err: "only 3 physical cores on the node, but there are 4 devices"},
		{name: "core complex, largest first", machine: oneNode, mode: numa.CoreComplex, workers: 4,
			want: []string{"2-5,8-11", "0-1,6-7", "2-5,8-11", "0-1,6-7"}},
		{name: "core complex, largest of the allowed", machine: oneNode, allowed: []int{0, 1, 6, 7, 3, 4}, mode: numa.CoreComplex, workers: 2, want: []string{"0-1,6-7", "3-4"}},
		{name: "core complex, equal sizes", machine: oneNode, allowed: []int{0, 1, 2, 3}, mode: numa.CoreComplex, workers: 2, want: []string{"0-1", "2-3"}},
		{name: "more workers than devices", machine: oneNode, mode: numa.Node, workers: 5, err: "5 workers, but only 4 devices: local rank 4 has none"},
		{name: "no devices", machine: machine{nodes: []string{"0"}}, mode: numa.Node, workers: 1, err: "no accelerator available for NUMA binding"},
		{name: "node without cpulist", machine: machine{nodes: []string{"-"}, devices: []int{0}}, mode: numa.Node, workers: 1, err: "could not determine CPUs corresponding to numa_node_index=0"},
		{name: "no such mode", machine: oneNode, mode: "near", workers: 1, err: `mode "near" is not known`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			allowed := tt.allowed
			if allowed == nil {
				allowed = upTo(len(tt.machine.socket))
			}
			got, err := tt.machine.topology(allowed).Bind(tt.mode, tt.workers)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("error %v, want %q", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, text(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func text(bound map[int][]int) []string {
	var list []string
	for rank := range len(bound) {
		list = append(list, formatRanges(bound[rank]))
	}
	return list
}

func TestBindDamagedTree(t *testing.T) {
	whole := twoSockets.topology(upTo(16))
	for _, mode := range []numa.Mode{numa.Node, numa.Socket, numa.Exclusive, numa.CoreComplex} {
		for name, damaged := range map[string]string{"missing": "", "garbage": "x-y\n"} {
			for file := range twoSockets.fs() {
				root := twoSockets.fs()
				delete(root, file)
				if damaged != "" {
					root[file] = &fstest.MapFile{Data: []byte(damaged)}
				}
				top := whole
				top.Root = root
				if bound, err := top.Bind(mode, 4); err == nil && len(bound) != 4 {
					t.Errorf("%s, %s %s: %v", mode, name, file, bound)
				}
			}
		}
	}
	if _, err := (numa.Topology{Root: fstest.MapFS{}, Devices: []string{""}}).Bind(numa.Node, 1); err == nil {
		t.Error("a device without address was bound")
	}
	if _, err := (numa.Topology{Root: fstest.MapFS{}}).Bind(numa.Node, 1); !errors.Is(err, numa.ErrNoDevice) {
		t.Errorf("error %v, want ErrNoDevice", err)
	}
}

// torch's own functions answer for random machines whose files lie in a
// directory, and so do ours.
func TestBindAsTorch(t *testing.T) {
	python := pypeer.Python(t)
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(1, 2))
	type question struct {
		Root    string
		Allowed []int
		Devices []string
		Mode    string
		Rank    int
	}
	var questions []question
	for i := range 60 {
		m := randomMachine(rng)
		root := filepath.Join(dir, strconv.Itoa(i))
		if err := os.CopyFS(root, m.fs()); err != nil {
			t.Fatal(err)
		}
		allowed := upTo(len(m.socket))
		if rng.IntN(2) == 0 {
			allowed = slices.DeleteFunc(allowed, func(int) bool { return rng.IntN(3) == 0 })
		}
		for _, mode := range []numa.Mode{numa.Node, numa.Socket, numa.Exclusive, numa.CoreComplex} {
			for rank := range m.devices {
				questions = append(questions, question{root, allowed, m.topology(nil).Devices, string(mode), rank})
			}
		}
	}
	input, err := json.Marshal(questions)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-c", judge)
	cmd.Stdin = strings.NewReader(string(input))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var answers []*string
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatal(err)
	}
	bound := 0
	for i, q := range questions {
		topology := numa.Topology{Root: os.DirFS(q.Root), Allowed: q.Allowed, Devices: q.Devices}
		all, err := topology.Bind(numa.Mode(q.Mode), q.Rank+1)
		want := answers[i]
		switch {
		case err != nil && want == nil:
		case err != nil:
			// Ours fails for all workers if one cannot be bound, so a lower one
			// must be to blame.
			if _, lower := topology.Bind(numa.Mode(q.Mode), q.Rank); q.Rank == 0 || lower == nil {
				t.Errorf("%+v: %v, torch has %s", q, err, *want)
			}
		case want == nil:
			// torch cannot bind to a socket that has a node without allowed CPUs.
			if q.Mode != "socket" {
				t.Errorf("%+v: torch fails, ours is %v", q, all[q.Rank])
			}
		default:
			bound++
			if got := formatRanges(all[q.Rank]); got != *want {
				t.Errorf("%+v: got %s, torch has %s", q, got, *want)
			}
		}
	}
	if bound < len(questions)/3 {
		t.Errorf("only %d of %d questions had an answer to compare", bound, len(questions))
	}
}

func randomMachine(rng *rand.Rand) machine {
	nodes, perNode := 1+rng.IntN(4), 2*(1+rng.IntN(6))
	cpus := nodes * perNode
	perSocket := 1 + rng.IntN(2)
	perCache := 1 + rng.IntN(perNode)
	m := machine{
		nodes:  repeat(nodes, func(n int) string { return fmt.Sprintf("%d-%d", n*perNode, (n+1)*perNode-1) }),
		socket: repeat(cpus, func(i int) int { return i / perNode / perSocket }),
		core:   repeat(cpus, func(i int) string { return fmt.Sprintf("%d-%d", i/2*2, i/2*2+1) }),
		cache: repeat(cpus, func(i int) string {
			node, k := i/perNode*perNode, i%perNode/perCache*perCache
			return fmt.Sprintf("%d-%d", node+k, node+min(k+perCache, perNode)-1)
		}),
	}
	for range 1 + rng.IntN(4) {
		m.devices = append(m.devices, rng.IntN(nodes+1)-1)
	}
	return m
}

// judge asks torch/numa/binding.py with its view of the machine replaced.
const judge = `
import builtins, json, os, sys, types
import torch
from torch.numa import binding
questions = json.load(sys.stdin)
real_open, real_listdir = builtins.open, os.listdir
here = None
def under(path):
    return here["Root"] + path if isinstance(path, str) and path.startswith("/sys/") else path
builtins.open = lambda path, *a, **k: real_open(under(path), *a, **k)
os.listdir = lambda path: real_listdir(under(path))
os.sched_getaffinity = lambda pid: set(here["Allowed"])
binding.shutil.which = lambda name: "/usr/bin/numactl"
binding._get_device_count = lambda: len(here["Devices"])
torch.accelerator.is_available = lambda: True
torch.accelerator.current_accelerator = lambda *a: "cuda"
class Module:
    @staticmethod
    def get_device_properties(i):
        domain, bus, rest = here["Devices"][i].split(":")
        return types.SimpleNamespace(pci_domain_id=int(domain, 16), pci_bus_id=int(bus, 16), pci_device_id=int(rest.split(".")[0], 16))
torch.get_device_module = lambda acc: Module
answers = []
for here in questions:
    try:
        cpus = binding._get_validated_logical_cpus_to_bind_to(device_index=here["Rank"],
            numa_options=binding.NumaOptions(affinity_mode=binding.AffinityMode(here["Mode"])))
        answers.append(binding._get_ranges_str_from_ints(cpus))
    except (RuntimeError, ValueError, OSError):
        answers.append(None)
print(json.dumps(answers))
`

func TestParseMode(t *testing.T) {
	for _, name := range []string{"node", "socket", "exclusive", "core-complex"} {
		if m, err := numa.ParseMode(name); string(m) != name || err != nil {
			t.Errorf("ParseMode(%q) = %q, %v", name, m, err)
		}
	}
	if _, err := numa.ParseMode("Node"); err == nil {
		t.Error("Node was accepted")
	}
}

func TestRanges(t *testing.T) {
	tests := []struct {
		text string
		want []int
		err  bool
	}{
		{text: "", want: nil},
		{text: "0", want: []int{0}},
		{text: "0-2,4,6-7\n", want: []int{0, 1, 2, 4, 6, 7}},
		{text: " 3 , 1-2,", want: []int{1, 2, 3}},
		{text: "1,1,0-1", want: []int{0, 1}},
		{text: "5-3", want: nil},
		{text: "a", err: true},
		{text: "1-", err: true},
		{text: "-1", err: true},
		{text: "1-2-3", err: true},
		{text: "0-99999999999", err: true},
	}
	for _, tt := range tests {
		got, err := numa.ParseRanges(tt.text)
		if (err != nil) != tt.err || !slices.Equal(got, tt.want) {
			t.Errorf("ParseRanges(%q) = %v, %v; want %v", tt.text, got, err, tt.want)
		}
	}
}

func FuzzParseRanges(f *testing.F) {
	for _, s := range []string{"0-2,4,6-7", "65535", "0-65535,0-65535,0-65535", ",,,", "1--2", "+1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := numa.ParseRanges(text)
		if err != nil {
			return
		}
		again, err := numa.ParseRanges(formatRanges(list))
		if err != nil || !slices.Equal(list, again) {
			t.Errorf("%q: %v became %v (%v)", text, list, again, err)
		}
	})
}

// formatRanges writes sorted numbers as ParseRanges reads them.
func formatRanges(list []int) string {
	var b strings.Builder
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(list[i]))
		if j > i {
			b.WriteString("-" + strconv.Itoa(list[j]))
		}
		i = j + 1
	}
	return b.String()
}
