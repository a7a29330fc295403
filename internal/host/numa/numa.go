// Package numa says which CPUs a worker should run on so that it is near its
// device, which it reads in Linux's sysfs through an fs.FS, and binds processes to CPUs.
//
// Source: torch/numa/binding.py. torchrun starts workers under the numactl
// program; here the set is given to the kernel directly.
package numa

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// A Mode says how near.
type Mode string

const (
	Node        Mode = "node"         // all CPUs of the device's NUMA node
	Socket      Mode = "socket"       // all CPUs of all nodes of the device's socket
	Exclusive   Mode = "exclusive"    // a share of the node's cores that no other device has
	CoreComplex Mode = "core-complex" // cores of the node that share a last-level cache
)

// ParseMode reads the name of a mode.
func ParseMode(name string) (Mode, error) {
	switch m := Mode(name); m {
	case Node, Socket, Exclusive, CoreComplex:
		return m, nil
	}
	return "", fmt.Errorf("want %s, %s, %s or %s, got %q", Node, Socket, Exclusive, CoreComplex, name)
}

// ErrNoDevice is returned when there is nothing to be near to.
var ErrNoDevice = errors.New("no accelerator available for NUMA binding")

// A Topology is one machine as seen by the agent.
type Topology struct {
	Root    fs.FS    // the file system, with sys in it
	Allowed []int    // CPUs that the agent may use
	Devices []string // PCI address of every visible device, by index
}

// Bind returns the CPUs of each of n workers, sorted. Worker i is near device i.
func (t Topology) Bind(mode Mode, n int) (map[int][]int, error) {
	if len(t.Devices) == 0 {
		return nil, ErrNoDevice
	}
	if n > len(t.Devices) {
		return nil, fmt.Errorf("%d workers, but only %d devices: local rank %d has none to be near to", n, len(t.Devices),
			len(t.Devices))
	}
	nodes := make([]int, len(t.Devices))
	for i, address := range t.Devices {
		node, err := t.nodeOf(address)
		if err != nil {
			return nil, fmt.Errorf("device %d: %w", i, err)
		}
		nodes[i] = node
	}
	bound := make(map[int][]int, n)
	for rank := range n {
		// peers: devices of the same node; k: this one's place among them.
		peers, k := 0, 0
		for i, node := range nodes {
			if node == nodes[rank] {
				peers++
				if i < rank {
					k++
				}
			}
		}
		cpus, err := t.cpus(mode, nodes[rank], k, peers)
		if err == nil && len(cpus) == 0 {
			err = errors.New("must bind to a non-empty set of CPU indices, and no CPU of the node is allowed")
		}
		if err != nil {
			return nil, fmt.Errorf("local rank %d, device %s, numa_node_index=%d: %w", rank, t.Devices[rank], nodes[rank], err)
		}
		slices.Sort(cpus)
		bound[rank] = cpus
	}
	return bound, nil
}

// cpus returns the set for device k of peers on node.
func (t Topology) cpus(mode Mode, node, k, peers int) ([]int, error) {
	allowed, err := t.allowed(node)
	if err != nil || mode == Node || len(allowed) == 0 {
		return allowed, err
	}
	switch mode {
	case Socket:
		return t.socket(allowed)
	case Exclusive:
		cores, err := groupBy(allowed, t.core)
		if err != nil {
			return nil, err
		}
		if len(cores) < peers {
			return nil, fmt.Errorf("there are only %d physical cores on the node, but there are %d devices associated with it",
				len(cores), peers)
		}
		each, extra := len(cores)/peers, len(cores)%peers
		start := k*each + min(k, extra)
		end := start + each
		if k < extra {
			end++
		}
		return slices.Concat(cores[start:end]...), nil
	case CoreComplex:
		groups, err := groupBy(allowed, t.cache)
		if err != nil {
			return nil, err
		}
		slices.SortStableFunc(groups, func(a, b []int) int { return len(b) - len(a) })
		return groups[k%len(groups)], nil
	default:
		return nil, fmt.Errorf("mode %q is not known", mode)
	}
}

// socket returns the allowed CPUs of every node in the package of the lowest of
// cpus. A node without allowed CPUs, such as one of memory only, is in no
// package; torchrun fails on one.
func (t Topology) socket(cpus []int) ([]int, error) {
	want, err := t.packageOf(cpus[0])
	if err != nil {
		return nil, err
	}
	possible, err := t.list("sys/devices/system/node/possible")
	if err != nil {
		return nil, err
	}
	var all []int
	for _, node := range possible {
		cpus, err := t.allowed(node)
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(cpus) == 0 {
			continue
		}
		if err != nil {
			return nil, err
		}
		pkg, err := t.packageOf(cpus[0])
		if err != nil {
			return nil, err
		}
		if pkg == want {
			all = append(all, cpus...)
		}
	}
	return all, nil
}

// nodeOf returns the node of a PCI device. A machine of one node often says -1.
func (t Topology) nodeOf(address string) (int, error) {
	if address == "" {
		return 0, errors.New("its PCI address is not known")
	}
	node, err := t.number("sys/bus/pci/devices/" + address + "/numa_node")
	return max(node, 0), err
}

// allowed returns the node's CPUs that the agent may use, sorted.
func (t Topology) allowed(node int) ([]int, error) {
	cpus, err := t.list(fmt.Sprintf("sys/devices/system/node/node%d/cpulist", node))
	if err != nil {
		return nil, fmt.Errorf("could not determine CPUs corresponding to numa_node_index=%d: %w", node, err)
	}
	return slices.DeleteFunc(cpus, func(cpu int) bool { return !slices.Contains(t.Allowed, cpu) }), nil
}

func cpuPath(cpu int, rest string) string {
	return fmt.Sprintf("sys/devices/system/cpu/cpu%d/%s", cpu, rest)
}

func (t Topology) packageOf(cpu int) (int, error) {
	return t.number(cpuPath(cpu, "topology/physical_package_id"))
}

// core names the physical core of a CPU by its lowest member.
func (t Topology) core(cpu int) (int, error) {
	siblings, err := t.list(cpuPath(cpu, "topology/thread_siblings_list"))
	if err != nil {
		return 0, err
	}
	if len(siblings) == 0 {
		return cpu, nil
	}
	return siblings[0], nil
}

// cache names the highest-level data cache of a CPU by its lowest member.
func (t Topology) cache(cpu int) (int, error) {
	dir := cpuPath(cpu, "cache")
	entries, err := fs.ReadDir(t.Root, dir)
	if err != nil {
		return 0, err
	}
	highest, lowest := -1, cpu
	for _, entry := range entries {
		if digits, ok := strings.CutPrefix(entry.Name(), "index"); !ok || !isNumber(digits) {
			continue
		}
		index := path.Join(dir, entry.Name())
		switch kind, err := t.read(index + "/type"); {
		case err != nil:
			return 0, err
		case kind != "Unified" && kind != "Data":
			continue
		}
		level, err := t.number(index + "/level")
		if err != nil {
			return 0, err
		}
		if level <= highest {
			continue
		}
		shared, err := t.list(index + "/shared_cpu_list")
		if err != nil {
			return 0, err
		}
		if len(shared) > 0 {
			highest, lowest = level, shared[0]
		}
	}
	return lowest, nil
}

// groupBy splits cpus by what name says of each; groups come in the order of
// their names.
func groupBy(cpus []int, name func(int) (int, error)) ([][]int, error) {
	groups := map[int][]int{}
	for _, cpu := range cpus {
		key, err := name(cpu)
		if err != nil {
			return nil, err
		}
		groups[key] = append(groups[key], cpu)
	}
	var sorted [][]int
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		sorted = append(sorted, groups[key])
	}
	return sorted, nil
}

func (t Topology) read(name string) (string, error) {
	data, err := fs.ReadFile(t.Root, name)
	return strings.TrimSpace(string(data)), err
}

func (t Topology) number(name string) (int, error) {
	text, err := t.read(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("read /%s: not a number: %.40q", name, text)
	}
	return n, nil
}

func (t Topology) list(name string) ([]int, error) {
	text, err := t.read(name)
	if err != nil {
		return nil, err
	}
	list, err := ParseRanges(text)
	if err != nil {
		return nil, fmt.Errorf("read /%s: %w", name, err)
	}
	return list, nil
}

func isNumber(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= 0
}

// maxCPUs bounds what a list may name: the kernel's largest configuration has
// 8192 CPUs and 1024 nodes.
const maxCPUs = 1 << 16

// ParseRanges reads a list such as "0-2,4,6-7" and returns its numbers sorted,
// each once.
func ParseRanges(text string) ([]int, error) {
	var list []int
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		from, to, ok := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		last := first
		if err == nil && ok {
			last, err = strconv.Atoi(to)
		}
		if err != nil || first < 0 || last < 0 || first >= maxCPUs || last >= maxCPUs {
			return nil, fmt.Errorf("not a list of numbers and ranges: %.40q", text)
		}
		if len(list) > 2*maxCPUs {
			return nil, fmt.Errorf("list of numbers and ranges is too long: %.40q", text)
		}
		for n := first; n <= last; n++ {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}
