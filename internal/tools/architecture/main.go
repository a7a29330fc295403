// Command architecture draws docs/architecture.svg: the packages and which imports
// which, as Go's own list of imports has them. It needs Graphviz's dot.
//
//	go run ./internal/tools/architecture
package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

const (
	module  = "github.com/muster-run/muster/"
	picture = "docs/architecture.svg"
)

func main() {
	if err := draw(); err != nil {
		fmt.Fprintln(os.Stderr, "architecture:", err)
		os.Exit(1)
	}
}

func draw() error {
	g, err := readImports(".")
	if err != nil {
		return err
	}
	cmd := exec.Command("dot", "-Tsvg", "-o", picture)
	cmd.Stdin, cmd.Stderr = strings.NewReader(g.dot()), os.Stderr
	return cmd.Run()
}

// A graph maps a package, named by its directory, to those it imports.
type graph map[string][]string

// readImports returns the imports among the packages that the programs and the
// library are made of, without tests, their labs and the tools.
func readImports(dir string) (graph, error) {
	cmd := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Imports ` `}}", module+"...")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	g := graph{}
	for line := range strings.Lines(string(out)) {
		var names []string
		for _, path := range strings.Fields(line) {
			if name, ours := strings.CutPrefix(path, module); ours && isProduct(name) {
				names = append(names, name)
			}
		}
		if len(names) > 0 && strings.HasPrefix(line, module+names[0]+" ") {
			g[names[0]] = names[1:]
		}
	}
	return g, nil
}

func isProduct(name string) bool {
	for _, dir := range [...]string{"internal/test", "internal/tools", "bench", "examples", "test", "store/storetest", "rendezvous/internal/simulate"} {
		if name == dir || strings.HasPrefix(name, dir+"/") {
			return false
		}
	}
	return true
}

// isLeaf reports whether the package is one that all others may import.
func isLeaf(name string) bool { return strings.HasPrefix(name, "internal/") }

// arrows returns the imports that are drawn, as "from -> to": none of leaves, which
// everything may import, and none that a longer way through other packages shows, too.
func (g graph) arrows() []string {
	var arrows []string
	for from, imports := range g {
		for _, to := range imports {
			shown := slices.ContainsFunc(imports, func(other string) bool { return other != to && g.reaches(other, to) })
			if !isLeaf(from) && !isLeaf(to) && !shown {
				arrows = append(arrows, from+" -> "+to)
			}
		}
	}
	slices.Sort(arrows)
	return arrows
}

func (g graph) reaches(from, to string) bool {
	return from == to || slices.ContainsFunc(g[from], func(next string) bool { return g.reaches(next, to) })
}

// leaves returns the leaves, a line for each room below internal/.
func (g graph) leaves() []string {
	var rooms []string
	for _, name := range slices.Sorted(maps.Keys(g)) {
		leaf, ok := strings.CutPrefix(name, "internal/")
		room, leaf, _ := strings.Cut(leaf, "/")
		last := len(rooms) - 1
		switch {
		case !ok:
		case last >= 0 && strings.HasPrefix(rooms[last], room+": "):
			rooms[last] += "  " + leaf
		default:
			rooms = append(rooms, strings.TrimSuffix(room+": "+leaf, ": "))
		}
	}
	return rooms
}

// dot returns the picture in Graphviz's language: the programs on top, below them
// what a Go program may import, at the bottom the leaves in one box.
func (g graph) dot() string {
	var b bytes.Buffer
	b.WriteString(`digraph muster {
	bgcolor="transparent"; rankdir=TB; ranksep=0.45; nodesep=0.18; margin=0.1
	node [shape=box, style="filled,rounded", fontname="Helvetica,Arial,sans-serif", fontsize=12, height=0.32, margin="0.12,0.05", color="#57606a", fontcolor="#1f2328", fillcolor="#ffffff"]
	edge [color="#8c959f", arrowsize=0.55, penwidth=0.9]
`)
	var top, bottom []string
	for _, name := range slices.Sorted(maps.Keys(g)) {
		if isLeaf(name) {
			continue
		}
		label, fill := name, "#ddf4ff"
		switch {
		case strings.HasPrefix(name, "cmd/"):
			label, fill = strings.Replace(name, "cmd/", "", 1), "#fff8c5"
			label = strings.Replace(label, "/internal/", "\\n", 1)
		case strings.Contains(name, "/internal/"):
			fill = "#f6f8fa"
		}
		if strings.Count(name, "/") == 1 && strings.HasPrefix(name, "cmd/") {
			top = append(top, quote(name))
		}
		if !slices.ContainsFunc(g[name], func(to string) bool { return !isLeaf(to) }) {
			bottom = append(bottom, quote(name))
		}
		fmt.Fprintf(&b, "\t%q [label=\"%s\", fillcolor=%q]\n", name, label, fill)
	}
	fmt.Fprintf(&b, "\t{rank=min; %s}\n", strings.Join(top, "; "))
	fmt.Fprintf(&b, "\tleaves [label=%q, fillcolor=\"#f6f8fa\"]\n", "internal/\n"+strings.Join(g.leaves(), "\n"))
	for _, name := range bottom {
		fmt.Fprintf(&b, "\t%s -> leaves [style=invis]\n", name)
	}
	for _, arrow := range g.arrows() {
		from, to, _ := strings.Cut(arrow, " -> ")
		fmt.Fprintf(&b, "\t%q -> %q\n", from, to)
	}
	b.WriteString("}\n")
	return b.String()
}

func quote(s string) string { return fmt.Sprintf("%q", s) }
