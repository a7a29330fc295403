package wheeltest

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/muster-run/muster/internal/version"
)

const (
	platform = runtime.GOOS + "/" + runtime.GOARCH
	tarball  = "muster-" + version.Version + "-" + runtime.GOOS + "-" + runtime.GOARCH
	sdist    = "muster_run-" + version.Version
)

// release makes the files of a release from the binaries of the wheel, in a new directory.
func release(env ...string) (string, error) {
	if _, err := wheel(); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(shared.dir, "release")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("python3", filepath.Join(root, "internal/tools/release.py"), "--built", shared.built,
		"--muster", filepath.Join(shared.built, platform, "muster"), "--out", dir, "--epoch", "1700000000", platform)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("release.py: %w\n%s", err, out)
	}
	return dir, nil
}

var firstRelease = sync.OnceValues(func() (string, error) { return release() })

// unpack returns what is in a tarball.
func unpack(t *testing.T, path string) fs.FS {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return os.DirFS(dir.Name())
		}
		if err == nil {
			err = dir.MkdirAll(filepath.Dir(h.Name), 0o755)
		}
		if err == nil && h.Typeflag == tar.TypeSymlink {
			err = dir.Symlink(h.Linkname, h.Name)
		} else if err == nil {
			var data []byte
			if data, err = io.ReadAll(r); err == nil {
				err = dir.WriteFile(h.Name, data, h.FileInfo().Mode())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// content is a file's text.
func content(t *testing.T, files fs.FS, name string) string {
	t.Helper()
	data, err := fs.ReadFile(files, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The same programs give the same bytes, whoever makes the release, where and when. The workflow of a release
// compares two, too.
func TestReleaseIsReproducible(t *testing.T) {
	if os.Getenv("MUSTER_JUDGE") == "" {
		t.Skip("compresses all programs once more; `make judge` runs it")
	}
	t.Parallel()
	once, err := firstRelease()
	if err != nil {
		t.Fatal(err)
	}
	again, err := release("TZ=Asia/Tokyo", "LC_ALL=C", "PYTHONHASHSEED=1")
	if err != nil {
		t.Fatal(err)
	}
	made, err := os.ReadDir(once)
	if err != nil || len(made) != 5 {
		t.Fatalf("made %v, %v; want 5 files", made, err)
	}
	for _, file := range made {
		if content(t, os.DirFS(again), file.Name()) != content(t, os.DirFS(once), file.Name()) {
			t.Errorf("%s differs the second time", file.Name())
		}
	}
}

func TestReleaseFiles(t *testing.T) {
	t.Parallel()
	dir, err := firstRelease()
	if err != nil {
		t.Fatal(err)
	}

	t.Run("checksums", func(t *testing.T) {
		made, err := os.ReadDir(dir)
		if err != nil || len(made) != 5 {
			t.Fatalf("made %v, %v; want 5 files", made, err)
		}
		sums := content(t, os.DirFS(dir), "SHA256SUMS")
		for _, file := range made {
			data := content(t, os.DirFS(dir), file.Name())
			if line := fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(data)), file.Name()); file.Name() != "SHA256SUMS" && !strings.Contains(sums, line) {
				t.Errorf("SHA256SUMS has no %q:\n%s", line, sums)
			}
		}
	})

	t.Run("tarball", func(t *testing.T) {
		files, err := fs.Sub(unpack(t, filepath.Join(dir, tarball+".tar.gz")), tarball)
		if err != nil {
			t.Fatal(err)
		}
		muster := filepath.Join(t.TempDir(), "muster")
		if err := os.WriteFile(muster, []byte(content(t, files, "bin/muster")), 0o755); err != nil {
			t.Fatal(err)
		}
		if got := output(t, dir, nil, muster, "version"); !strings.HasPrefix(got, "muster "+version.Version+" ") {
			t.Errorf("its version is %s", got)
		}
		for shell, name := range map[string]string{
			"bash": "share/bash-completion/completions/muster", "zsh": "share/zsh/site-functions/_muster",
			"tcsh": "share/muster/completion.tcsh",
		} {
			if content(t, files, name) != output(t, dir, nil, muster, "completion", shell) {
				t.Errorf("%s is not what muster completion %s prints", name, shell)
			}
		}
		if page := content(t, files, "share/man/man1/muster.1"); !strings.Contains(page, `.TH MUSTER 1 "2023-11-14" "muster `+version.Version+`"`) {
			t.Errorf("the man page begins %.200s", page)
		}
		if readme := content(t, files, "share/doc/muster/README.md"); strings.Contains(readme, "](docs/") {
			t.Error("README.md has links to files that are not there")
		}
		for _, name := range []string{"bin/muster", "bin/muster-quorum"} {
			if info, err := fs.Stat(files, name); err != nil || info.Mode().Perm()&0o111 == 0 {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
		for _, part := range []string{"go.etcd.io/etcd/server/v3 v", "go.yaml.in/yaml/v3 v", "Apache License", "Copyright 2009 The Go Authors"} {
			if !strings.Contains(content(t, files, "share/doc/muster/THIRD-PARTY-LICENSES"), part) {
				t.Errorf("THIRD-PARTY-LICENSES has no %q", part)
			}
		}
		content(t, files, "share/doc/muster/LICENSE")
	})

	t.Run("image", func(t *testing.T) {
		files := unpack(t, filepath.Join(dir, "muster-"+version.Version+"-image.tar.gz"))
		if text := content(t, files, "Dockerfile"); !strings.Contains(text, `image.version="`+version.Version+`"`) {
			t.Errorf("Dockerfile: %s", text)
		}
		if runtime.GOOS == "linux" {
			for _, name := range []string{"muster", "muster-quorum", "torchrun"} {
				content(t, files, runtime.GOARCH+"/bin/"+name)
			}
		}
	})

	t.Run("SBOM", func(t *testing.T) {
		var bom struct {
			Components   []struct{ Name, Version, Type string }
			Dependencies []struct {
				Ref       string
				DependsOn []string
			}
		}
		if err := json.Unmarshal([]byte(content(t, os.DirFS(dir), "muster-"+version.Version+".cdx.json")), &bom); err != nil {
			t.Fatal(err)
		}
		var libraries []string
		for _, c := range bom.Components {
			if c.Type == "library" {
				libraries = append(libraries, c.Name+"@"+c.Version)
			}
		}
		want := "std@v" + strings.TrimPrefix(runtime.Version(), "go")
		said, err := exec.Command("go", "version", "-m", filepath.Join(shared.built, platform, "muster"), filepath.Join(shared.built, platform, "muster-quorum")).Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(said)) {
			if words := strings.Fields(line); words[0] == "dep" && words[1] != "github.com/muster-run/muster" {
				want += " " + words[1] + "@" + words[2]
			}
		}
		wanted := strings.Fields(want)
		slices.Sort(wanted)
		slices.Sort(libraries)
		if wanted = slices.Compact(wanted); !slices.Equal(libraries, wanted) || len(bom.Dependencies) != 3 {
			t.Errorf("libraries %q, want %q; %d programs with the top", libraries, wanted, len(bom.Dependencies))
		}
	})

	// pip builds from the source with Go, and says so where there is none.
	t.Run("sdist", func(t *testing.T) {
		files := unpack(t, filepath.Join(dir, sdist+".tar.gz"))
		info := content(t, files, sdist+"/PKG-INFO")
		if !strings.Contains(info, "\nName: muster-run\nVersion: "+version.Version+"\n") {
			t.Errorf("PKG-INFO: %.300s", info)
		}
		if _, err := fs.Stat(files, sdist+"/go.mod"); err != nil {
			t.Error(err)
		}
		if text := content(t, files, sdist+"/pyproject.toml"); !strings.Contains(text, `build-backend = "wheel"`) || !strings.Contains(text, `"internal/tools"`) {
			t.Errorf("pyproject.toml: %s", text)
		}
		python := output(t, dir, nil, "python3", "-c", "import sys; print(sys.executable)")
		cmd := exec.Command(strings.TrimSpace(python), "-c", "import wheel; wheel.build_wheel('.')")
		cmd.Dir = t.TempDir()
		tools, err := filepath.Abs(filepath.Join(root, "internal/tools"))
		if err != nil {
			t.Fatal(err)
		}
		cmd.Env = []string{"PATH=" + t.TempDir(), "PYTHONPATH=" + tools, "PYTHONDONTWRITEBYTECODE=1"}
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "\nhint: install Go ") {
			t.Errorf("without Go: %v, %s", err, out)
		}
	})
}
