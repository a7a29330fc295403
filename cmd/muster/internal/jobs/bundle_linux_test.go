package jobs

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/internal/version"
)

// unpack reads a bundle: the contents by name, and the names in their order.
func unpack(t *testing.T, file, dir string) (contents map[string]string, names []string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file's mode is %v, want 0600: %v", info.Mode(), err)
	}
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	contents = map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return contents, names
		}
		if err != nil {
			t.Fatal(err)
		}
		name, ok := strings.CutPrefix(h.Name, dir+"/")
		if !ok || h.Typeflag != tar.TypeReg || h.Mode != 0o600 {
			t.Errorf("the bundle has %+v, want a file in %s", h, dir)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		contents[name], names = string(b), append(names, name)
	}
}

// write makes files below a directory; a size is that of a sparse file.
func write(t *testing.T, dir string, files map[string]any) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o777)
		switch c := content.(type) {
		case string:
			err = errors.Join(err, os.WriteFile(path, []byte(c), 0o666))
		case int:
			err = errors.Join(err, os.WriteFile(path, nil, 0o666), os.Truncate(path, int64(c)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

const failedReport = `{"version": 1, "cause": "rank 0: boom", "failures": [{"kind": "failed", "cause": "boom", "rank": 0, "exit_code": 1}]}`

// A bundle has what explains the run: the ends of large files, nothing from behind a link; its index says what is missing.
func TestBundle(t *testing.T) {
	top := t.TempDir()
	t.Chdir(top)
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, filepath.Dir(secret), map[string]any{"secret": "of the disk", "0/stdout.log": "of the disk"})
	run := filepath.Join(top, "logs", "job 7_abcdefgh")
	write(t, run, map[string]any{
		"job.jsonl": "{}\n", "events.jsonl": "", "checkpoint.pt": "weights", "rotated.jsonl": 9 << 20,
		"attempt_0/report.json": failedReport, "attempt_0/0/stdout.log": "oldest", "attempt_0/0/error.json": "{}",
		"attempt_1/report.json": failedReport, "attempt_1/0/stdout.log": "older",
		"attempt_2/0/stdout.log": "fine",
		"attempt_3/report.json":  failedReport, "attempt_3/.report.json": "half", "attempt_3/autopsy.txt": "stacks",
		"attempt_3/nvidia-smi.txt":      "NVSMI LOG",
		"attempt_3/filtered_stderr.log": "the last words\n", "attempt_3/autopsy-rank0-nccl.pickle": "records",
		"attempt_3/0/stdout.log": strings.Repeat("x", 64<<10) + "last line\n", "attempt_3/0/stderr.log": "tail",
		"attempt_3/1/stderr.log": "x", "attempt_3/0/stdout.log.1": "rotated",
	})
	for link, to := range map[string]string{"attempt_3/autopsy.json": secret, "attempt_3/1/stdout.log": secret, "attempt_3/2": filepath.Dir(secret) + "/0", "attempt_4": filepath.Dir(secret)} {
		if err := os.Symlink(to, filepath.Join(run, link)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("MUSTER_TOKEN", "hidden-1")
	t.Setenv("PET_RDZV_CONF", "token=hidden-2,is_host=1")
	t.Setenv("NCCL_DEBUG", "INFO")
	t.Setenv("MUSTER_ON_EVENT", "curl https://hooks.example/hidden-3")
	t.Setenv("TORCH_HOME", "https://user:hidden-4/hidden-6@example/x")
	t.Setenv("TORCH_HUB", "https://example/x?token=hidden-7")
	t.Setenv("TORCH_HEADERS", "Authorization: Bearer hidden-8")
	for _, name := range []string{"SLURM_JWT", "OMPI_AUTH", "CUDA_APIKEYS", "TORCHX_CREDS", "TORCH_PWD2", "MUSTER_NOTIFY_WEBHOOK"} {
		t.Setenv(name, "hidden-9")
	}
	t.Setenv("MY_OWN", "hidden-5")
	out := says(t, "bundle logs", console.ExitOK, "Wrote muster-job_7_abcdefgh.tar.gz. Look at it before")
	if strings.Contains(out, "newest") {
		t.Error(out)
	}
	got, names := unpack(t, "muster-job_7_abcdefgh.tar.gz", "muster-job_7_abcdefgh")
	want := []string{
		"report.txt", "report.json", "versions.txt", "environment.txt", "events.jsonl", "job.jsonl", "rotated.jsonl",
		"attempt_3/0/stderr.log", "attempt_3/0/stdout.log", "attempt_3/1/stderr.log", "attempt_3/autopsy-rank0-nccl.pickle", "attempt_3/autopsy.txt", "attempt_3/filtered_stderr.log", "attempt_3/nvidia-smi.txt", "attempt_3/report.json",
		"attempt_2/0/stdout.log", "attempt_1/0/stdout.log", "attempt_1/report.json", "attempt_0/0/error.json", "attempt_0/0/stdout.log", "attempt_0/report.json", "index.txt",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for name, want := range map[string]string{
		"attempt_3/0/stdout.log": strings.Repeat("x", 64<<10-10) + "last line\n", "attempt_3/0/stderr.log": "tail", "attempt_3/autopsy.txt": "stacks", "attempt_3/filtered_stderr.log": "the last words\n", "attempt_1/0/stdout.log": "older",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	got["index.txt"] = regexp.MustCompile(" {2,}").ReplaceAllString(got["index.txt"], "  ")
	for name, wants := range map[string][]string{
		"report.txt": {"failed after 4 attempts", "boom", "nvidia-smi.txt  what nvidia-smi -q said after that\n"}, "report.json": {`"cause": "boom"`}, "versions.txt": {"torchrun " + version.Torchrun},
		"environment.txt": {"MUSTER_TOKEN=***\n", "PET_RDZV_CONF=token=***,is_host=1\n", "NCCL_DEBUG=INFO\n", "MUSTER_ON_EVENT=***\n", "TORCH_HOME=https://***@example/x\n", "TORCH_HUB=https://example/x?***\n", "SLURM_JWT=***\n"},
		"index.txt": {
			"rotated.jsonl  8388608  the last of 9437184 bytes\n", "attempt_3/0/stdout.log  65536  the last of 65546 bytes\n",
			"attempt_3/autopsy.json  -  left out: is a symbolic link; left alone\n", "attempt_3/1/stdout.log  -  left out: is a symbolic link; left alone\n",
		},
	} {
		for _, want := range wants {
			if !strings.Contains(got[name], want) {
				t.Errorf("%s has no %q:\n%s", name, want, got[name])
			}
		}
	}
	for name, content := range got {
		for _, not := range []string{"of the disk", "hidden-", "network\n"} {
			if strings.Contains(content, not) {
				t.Errorf("%s has %q", name, not)
			}
		}
	}

	says(t, "bundle logs", console.ExitError, "error: muster-job_7_abcdefgh.tar.gz exists already\nhint: remove it, or name another file with --out\n")
	says(t, "bundle nosuch/dir", console.ExitError, "error: "+top+"/nosuch/dir: no such file or directory\nhint: give the --log-dir of a job")
	says(t, "bundle logs -o nosuch/x.tar.gz", console.ExitError, "error: open nosuch/x.tar.gz: no such file or directory\n")
	says(t, "bundle logs more", console.ExitUsage, "error: unexpected argument 'more'\nhint: leave it out\n")
}

// A bundle has a limit, and takes the newest first.
func TestBundleLimit(t *testing.T) {
	dir := t.TempDir()
	files := map[string]any{}
	for _, n := range strings.Fields("0 1 2 3 4 5 6 7 8") {
		files["attempt_"+n+"/autopsy.txt"] = 8 << 20
	}
	write(t, filepath.Join(dir, "job7_abcdefgh"), files)
	file := filepath.Join(dir, "b.tar.gz")
	says(t, "bundle "+dir+" --out "+file, console.ExitOK)
	got, names := unpack(t, file, "muster-job7_abcdefgh")
	if !slices.Contains(names, "attempt_8/autopsy.txt") || slices.Contains(names, "attempt_0/autopsy.txt") {
		t.Errorf("the bundle has %q", names)
	}
	if want := "attempt_0/autopsy.txt  -        left out: the bundle has its limit of 64 MiB\n"; !strings.Contains(got["index.txt"], want) {
		t.Errorf("the index has no %q:\n%s", want, got["index.txt"])
	}
}
