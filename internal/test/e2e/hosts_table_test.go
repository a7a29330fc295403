//go:build linux

package e2e

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

// A hostsTable is what happened in each cell of the matrix.
type hostsTable struct {
	mu    sync.Mutex // guards cells
	cells map[[2]string]string
}

func newHostsTable() *hostsTable { return &hostsTable{cells: map[[2]string]string{}} }

func (h *hostsTable) set(carrier, row, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cells[[2]string{carrier, row}] = text
}

// String is the table as Markdown.
func (h *hostsTable) String() string {
	var b strings.Builder
	for _, row := range hostsRows {
		fmt.Fprintf(&b, "\n### %s\n\n| carrier | what happened |\n|---|---|\n", row.name)
		for _, c := range hostsCarriers {
			if text := h.cells[[2]string{c.name, row.name}]; text != "" {
				fmt.Fprintf(&b, "| %s | %s |\n", c.name, text)
			}
		}
	}
	return b.String()
}

// write writes the table into docs/reliability.md, in place of the one that is there.
func (h *hostsTable) write(t testing.TB) {
	t.Helper()
	writeTable(t, "matrix", h.String())
}

// writeTable puts a table into docs/reliability.md.
func writeTable(t testing.TB, name, table string) {
	t.Helper()
	const path = "../../../docs/reliability.md"
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->\n"
	text := contents(t, path)
	head, rest, ok := strings.Cut(text, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no %s… %s", path, begin, end)
	}
	if err := os.WriteFile(path, []byte(head+begin+table+"\n"+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}
