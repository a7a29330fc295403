package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file that only another system has is checked, and so are a test's files and the bodies of functions.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.org/m\n\ngo 1.26\n")
	write("m.go", "package m\n\nimport \"os\"\n\nvar PageSize = os.Getpagesize()\n")
	t.Chdir(dir)
	t.Setenv("GOWORK", "off")
	if n, err := check("darwin/arm64", []string{"./..."}); n != 1 || err != nil {
		t.Fatalf("%d packages, %v", n, err)
	}
	for name, wrong := range map[string]string{
		"m_darwin.go":      "package m\n\nfunc pages() int64 { return PageSize }\n",
		"m_darwin_test.go": "package m\n\nimport \"syscall\"\n\nvar _ = syscall.Epoll_pwait\n",
	} {
		write(name, wrong)
		if _, err := check("linux/arm64", []string{"./..."}); err != nil {
			t.Errorf("%s: linux/arm64: %v", name, err)
		}
		if _, err := check("darwin/arm64", []string{"./..."}); err == nil || !strings.Contains(err.Error(), name+":") {
			t.Errorf("%s: darwin/arm64: %v", name, err)
		}
		os.Remove(name)
	}
	if _, err := check("linux/none", []string{"./..."}); err == nil {
		t.Error("linux/none passes")
	}
}
