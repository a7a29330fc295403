package main

import (
	"html"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func imports(t *testing.T) graph {
	t.Helper()
	g, err := readImports("../../..")
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// docs/architecture.svg shows today's packages and imports.
func TestPicture(t *testing.T) {
	g := imports(t)
	svg, err := os.ReadFile("../../../" + picture)
	if err != nil {
		t.Fatal(err)
	}
	var drawn []string
	for _, title := range regexp.MustCompile(`<title>([^<]*&#45;&gt;[^<]*)</title>`).FindAllStringSubmatch(string(svg), -1) {
		if arrow := strings.Replace(html.UnescapeString(title[1]), "->", " -> ", 1); !strings.HasSuffix(arrow, " leaves") {
			drawn = append(drawn, arrow)
		}
	}
	slices.Sort(drawn)
	if diff := cmp.Diff(g.arrows(), drawn); diff != "" {
		t.Errorf("draw it again with `go run ./internal/tools/architecture` (-imports +picture):\n%s", diff)
	}
	for _, leaf := range regexp.MustCompile(`\w+`).FindAllString(strings.Join(g.leaves(), " "), -1) {
		if !regexp.MustCompile(`\b` + regexp.QuoteMeta(leaf) + `\b`).Match(svg) {
			t.Errorf("the picture lacks %s of internal/: draw it again", leaf)
		}
	}
}

// Leaves import leaves only.
func TestNoImportPointsUpward(t *testing.T) {
	for name, imports := range imports(t) {
		for _, to := range imports {
			if isLeaf(name) && !isLeaf(to) {
				t.Errorf("%s imports %s", name, to)
			}
		}
	}
}

// The rooms below internal/ have an order, too: each imports only those before it.
func TestRoomsHaveNoCircle(t *testing.T) {
	rooms := map[string]map[string]bool{}
	room := func(name string) string { return strings.Split(name+"/", "/")[1] }
	for name, imports := range imports(t) {
		if !isLeaf(name) {
			continue
		}
		if rooms[room(name)] == nil {
			rooms[room(name)] = map[string]bool{}
		}
		for _, to := range imports {
			if isLeaf(to) && room(to) != room(name) {
				rooms[room(name)][room(to)] = true
			}
		}
	}
	if len(rooms) < 6 {
		t.Fatalf("only %d rooms were found: %v", len(rooms), rooms)
	}
	for before := -1; before != len(rooms); {
		before = len(rooms)
		for name, imports := range rooms {
			if len(imports) == 0 {
				delete(rooms, name)
				for _, others := range rooms {
					delete(others, name)
				}
			}
		}
	}
	if len(rooms) > 0 {
		t.Errorf("these import each other: %v", rooms)
	}
}
