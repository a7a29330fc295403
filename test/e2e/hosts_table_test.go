//go:build linux

package e2e

import (
	"fmt"
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
	for _, row := range hostsRows {
		fmt.Fprintf(&b, "\n### %s\n\n| backend | what happened |\n|---|---|\n", row.name)
		for _, c := range hostsBackends {
			if text := h.cells[[2]string{c.name, row.name}]; text != "" {
				fmt.Fprintf(&b, "| %s | %s |\n", c.name, text)
			}
		}
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
