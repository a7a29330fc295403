// Package site looks at the documentation site with a browser. It has a test only, in a package of its own
// so that Go serves its result until a page changes.
package site

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/muster-run/muster/internal/test/chromium"
)

// root is the source tree.
const root = "../../.."

// see has a cached result of the test depend on what docs.sh makes the site of: Go notes the files that a test
// itself looks at.
func see(t *testing.T) {
	t.Helper()
	for _, name := range []string{
		"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "STYLE.md", "SECURITY.md", "LICENSE", "bench/doc.go",
		"internal/tools/docs.sh", "internal/tools/chromium.sh",
		"internal/tools/pages/zensical.toml", "internal/tools/pages/requirements.txt",
	} {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"docs", "examples"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(_ string, _ fs.DirEntry, err error) error { return err })
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Each page of the site fits into the window of a desktop and of a phone, light and dark, has
// its pictures, and asks no other host for anything. The search finds an option.
func TestSite(t *testing.T) {
	see(t)
	dir := filepath.Join(t.TempDir(), "site")
	out, err := exec.Command(root+"/internal/tools/docs.sh", dir).CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 3 {
		t.Skipf("no site: %s", out)
	} else if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	b := chromium.Start(t, root+"/internal/tools/chromium.sh")
	p := b.Tab()
	for _, pattern := range []string{"*.html", "docs/*.html", "docs/*/*.html"} {
		files, _ := filepath.Glob(filepath.Join(dir, pattern))
		if files == nil {
			t.Errorf("the site has no %s", pattern)
		}
		for i, file := range files {
			name, _ := filepath.Rel(dir, file)
			for n, width := range [][]int{{390, 1280}, {1280, 390}}[i/2%2] {
				p.Width(width, []string{"light", "dark"}[i%2])
				if n == 0 { // the other is the same window, resized
					p.Open(server.URL + "/" + filepath.ToSlash(name))
				}
				var wrong []string
				p.Eval(fmt.Sprintf(`[...document.images].filter((i) => i.complete && !i.naturalWidth).map((i) => "no picture " + i.src)
					.concat(/^(.+) . \1$/.test(document.title) ? ["the title is " + document.title] : [])
					.concat(document.documentElement.scrollWidth > %d ? ["the document is " + document.documentElement.scrollWidth + " wide"] : [])
					.concat(performance.getEntriesByType("resource").map((r) => r.name).filter((r) => !r.startsWith(location.origin)))`, width), &wrong)
				if wrong = append(wrong, b.Complaints()...); len(wrong) > 0 {
					t.Errorf("%s at %d pixels: %q", name, width, wrong)
				}
			}
		}
	}
	p.Open(server.URL + "/index.html")
	p.Eval(`window.inside = (n, f) => { for (const e of n.querySelectorAll("*")) { if (f(e)) return e; const r = e.shadowRoot && inside(e.shadowRoot, f); if (r) return r } };
		window.input = () => inside(document, (e) => e.matches("input[aria-label=Search]")); 0`, nil)
	p.Until(`document.querySelector(".md-search__button")`)
	p.Until(`input() || (document.querySelector(".md-search__button").click(), false)`)
	p.Eval(`input().value = "hang-timeout"; input().dispatchEvent(new Event("input", { bubbles: true })); 0`, nil)
	p.Until(`inside(document, (e) => e.matches("a[href*='options.html'][href$='--hang-timeout']"))`)
}
