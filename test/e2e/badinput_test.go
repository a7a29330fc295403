//go:build linux

package e2e

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A command line that cannot work is refused at once with status 2, before
// anything is started, by words that say what to do.
func TestBadInput(t *testing.T) {
	t.Parallel()
	file := script(t, "file", "")
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		line string // of muster run, split at blanks
		env  []string
		says []string
	}{
		{line: "", says: []string{"script"}},
		{line: "--nnodes 0 s.py", says: []string{"--nnodes"}},
		{line: "--nnodes 2:1 s.py", says: []string{"--nnodes"}},
		{line: "--nnodes x s.py", says: []string{"--nnodes", "'x'"}},
		{line: "--nproc-per-node 0 s.py", says: []string{"--nproc-per-node", "got 0"}},
		{line: "--nproc-per-node -1 s.py", says: []string{"--nproc-per-node", "got -1"}},
		{line: "--nproc-per-node foo s.py", says: []string{"--nproc-per-node", "'foo'", "auto, cpu, gpu or xpu"}},
		{line: "--nproc-per-node gpu s.py", env: []string{"CUDA_VISIBLE_DEVICES=", "MUSTER_DEVICES=0"}, says: []string{"--nproc-per-node", "Cuda is not available"}},
		{line: "--max-restrats 3 s.py", says: []string{"--max-restrats", "did you mean --max-restarts?"}},
		{line: "--max-restarts many s.py", says: []string{"--max-restarts", "'many'"}},
		{line: "--max-restarts -1 s.py", says: []string{"max", "-1"}},
		{line: "--start-method thread s.py", says: []string{"--start-method", "'thread'"}},
		{line: "-t 4 s.py", says: []string{"--tee", `"4"`}},
		{line: "-r 0:1,1 s.py", says: []string{"--redirects", "0:1,1"}},
		{line: "--rdzv-conf timeout s.py", says: []string{"--rdzv-conf", "'timeout'"}},
		{line: "--rdzv-conf =3 s.py", says: []string{"--rdzv-conf"}},
		{line: "--rdzv-backend nosuch s.py", says: []string{"nosuch"}},
		{line: "--local-ranks-filter a s.py", says: []string{"--local-ranks-filter", "'a' is not a list of local ranks"}},
		{line: "--signals-to-handle SIGKILL s.py", says: []string{"--signals-to-handle", "SIGKILL cannot be handled"}},
		{line: "--shutdown-timeout -1 s.py", says: []string{"--shutdown-timeout must be non-negative", "-1"}},
		{line: "--monitor-interval 0 s.py", says: []string{"--monitor-interval", "> 0"}},
		{line: "--event-log-handler nosuch s.py", says: []string{"nosuch", "console"}},
		{line: "--logs-specs mine s.py", says: []string{"torchrun.logs_specs[mine]", "--log-dir"}},
		{line: "--log-dir " + file + " s.py", says: []string{file + " is a file"}},
		{line: "-m --no-python s", says: []string{"--no-python", "--module"}},
		{line: "nosuch.py", says: []string{"'nosuch.py'"}},
		{line: "--no-python nosuch", says: []string{"nosuch"}},
		{line: "--no-python " + plain, says: []string{plain, "not executable"}},
		{line: file, env: []string{"PYTHON_EXEC=/opt/missing/python3"}, says: []string{"/opt/missing/python3"}},
		{line: file, env: []string{"PYTHON_EXEC="}, says: []string{"PYTHON_EXEC"}},
		{line: file, env: []string{"PET_MAX_RESTARTS=x"}, says: []string{"--max-restarts", "'x'"}},
		{line: file, env: []string{"PET_STANDALONE=true"}, says: []string{"PET_STANDALONE", "true"}},
		{line: file, env: []string{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=soon"}, says: []string{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon"}},
		// All that is wrong is told together.
		{line: "--nnodes 0 --nproc-per-node 0 -t 9 --bogus 1 s.py", env: []string{"PET_MAX_RESTARTS=x"},
			says: []string{"--nnodes", "--nproc-per-node", "--tee", "--bogus", "'x'"}},
	} {
		t.Run(strings.ReplaceAll(tt.line, "/", "_"), func(t *testing.T) {
			t.Parallel()
			j := run(t, muster(t), setup{env: tt.env}, tt.line)
			j.want(2).says(tt.says...).saysNot("goroutine ", "panic")
			if got := glob(t, j.tmp, "*"); len(got) > 0 {
				t.Errorf("left in TMPDIR: %q", got)
			}
		})
	}
}

func TestLogDirectoryIsNotWritable(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"/proc/muster/logs", "/dev/null/logs"} {
		j := workers(t, muster(t), setup{}, "--standalone -r 3 --log-dir "+dir, "ready", "exit:0")
		if status := j.status(); status == 0 || len(j.rest()) > 0 {
			t.Errorf("%s: status %d", dir, status)
		}
		j.says(filepath.Dir(dir), "--log-dir")
	}
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	j := workers(t, muster(t), setup{}, "--nproc-per-node 2 --master-port "+port, "ready", "exit:0")
	j.want(1).says(port, "address already in use", "--master-port").noneLeft(0)
	if got := j.rest(); len(got) > 0 {
		t.Errorf("workers were started: %q", got)
	}
}

// More workers than descriptors allow: refused before any is started.
func TestLimitsTooLow(t *testing.T) {
	t.Parallel()
	s := setup{wrap: []string{"/bin/sh", "-c", `ulimit -n 60; exec "$@"`, "sh"}}
	j := workers(t, muster(t), s, "--standalone --nproc-per-node 64 -t 3", "ready", "exit:0")
	if status := j.status(); status == 0 {
		t.Error("64 workers with 60 descriptors ran")
	}
	j.says("60", "ulimit -n").noneLeft(0)
	if got := j.rest(); len(got) > 0 {
		t.Errorf("workers were started: %q", got)
	}
}

// Signals do not get lost at the very start either.
func TestSignalAtStart(t *testing.T) {
	t.Parallel()
	for range 20 {
		j := workers(t, muster(t), setup{}, "--standalone --nproc-per-node 2", "hang")
		j.signal(syscall.SIGTERM)
		if status := j.status(); status != 1 && status != -15 {
			t.Errorf("status %d", status)
		}
		j.noneLeft(soon)
	}
}
