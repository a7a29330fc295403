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
	for _, leaf := range g.leaves() {
		if !regexp.MustCompile(`\b` + regexp.QuoteMeta(leaf) + `\b`).Match(svg) {
			t.Errorf("the picture lacks internal/%s: draw it again", leaf)
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
