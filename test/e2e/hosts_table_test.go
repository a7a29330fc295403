//go:build linux

package e2e

import (
	"cmp"
	"os"
	"path/filepath"
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

func (h *hostsTable) set(backend, row, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cells[[2]string{backend, row}] = text
}

// String is the table as Markdown.
func (h *hostsTable) String() string {
	var b strings.Builder
	b.WriteString("\n| event | outcome |")
	for _, c := range hostsBackends {
		b.WriteString(" " + c.name + " |")
	}
	b.WriteString("\n|" + strings.Repeat("---|", 2+len(hostsBackends)) + "\n")
	for _, row := range hostsRows {
		b.WriteString("| " + row.name + " | " + row.outcome + " |")
		for _, c := range hostsBackends {
			b.WriteString(" " + cmp.Or(h.cells[[2]string{c.name, row.name}], "–") + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// leave writes a table for internal/tools/reliability, which puts it into the page.
func leave(t testing.TB, name, table string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(*tables, name), []byte(table), 0o644); err != nil {
		t.Fatal(err)
	}
}
