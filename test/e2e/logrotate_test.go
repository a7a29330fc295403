//go:build linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/test/slurmlab"
	"github.com/muster-run/muster/internal/test/testproc"
)

// The section of docs/logs.md has this configuration, for other sizes and times.
const rotation = `%s/*/attempt_*/*/std*.log {
    copytruncate
    size 1
    rotate 20
    compress
    delaycompress
    missingok
    notifempty
}
`

// Over many rotations by the real logrotate, --tee, muster logs -f and the failure report lose no line and
// have none twice, if they look at the file, as they do ten times a second, between two of them. The worker
// waits while logrotate runs: copytruncate itself loses what is written then.
func TestLogrotate(t *testing.T) {
	t.Parallel()
	logrotate := slurmlab.NeedLogrotate(t)
	dir := t.TempDir()
	logs, orders, done := filepath.Join(dir, "logs"), filepath.Join(dir, "orders"), filepath.Join(dir, "done")
	config := script(t, "logrotate.conf", fmt.Sprintf(rotation, logs))
	must(os.Chmod(config, 0o644))
	fifo := func(path string) *os.File {
		must(syscall.Mkfifo(path, 0o600))
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	tell, heard := fifo(orders), fifo(done)
	j := start(t, muster(t), setup{}, "--standalone --no-python --tee 3 --health-addr 0 --log-dir "+logs, "sh", "-c", `
		n=0
		while read -r lines; do
			[ $lines != end ] || { echo "the last words" >&2; exit 3; }
			end=$((n + lines))
			while [ $n -lt $end ]; do n=$((n + 1)); echo "line $n"; echo "error $n" >&2; done
			echo >"$1"
		done <"$0"`, orders, done)
	awaitText(j, "status page at ")
	addr := regexp.MustCompile(`status page at http://([^/,\s]*)`).FindStringSubmatch(j.errs())[1]
	tool := launcher{"muster logs", []string{filepath.Join(bin, "muster"), "logs"}}
	readers := []*job{start(t, tool, setup{}, "-f "+logs), start(t, tool, setup{}, "-f "+addr)}
	total := 0
	write := func(n int) {
		total += n
		fmt.Fprintln(tell, n)
		_, err := heard.Read(make([]byte, 1))
		must(err)
	}
	// caughtUp waits until all readers have a line.
	caughtUp := func(n int) {
		line := fmt.Sprintf("line %d\n", n)
		for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
			if strings.Contains(j.out(), line) && strings.Contains(readers[0].out(), line) && strings.Contains(readers[1].out(), line) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("no %q in\n%s\n%s\n%s", line, j.console(), readers[0].console(), readers[1].console())
			}
		}
	}
	write(1)
	caughtUp(1)
	for _, n := range [][2]int{{100, 300}, {400, 50}, {1, 1}, {2, 2000}, {700, 700}, {1000, 1}} { // before a rotation and after it
		write(n[0])
		cmd := exec.Command(logrotate, "-f", "-s", filepath.Join(dir, "state"), config)
		cmd.Env = append(os.Environ(), testproc.Unpaused)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if info, err := os.Stat(one(t, logs, "*/attempt_0/0/stdout.log")); err != nil || info.Size() > 0 {
			t.Fatal("logrotate has not emptied the log", err)
		}
		write(n[1])
		caughtUp(total)
	}
	fmt.Fprintln(tell, "end")
	j.want(1).says("the last words")
	for _, f := range readers {
		f.want(0)
	}
	said := map[string]string{
		"stdout of --tee": j.out(), "stderr of --tee": j.errs(),
		"muster logs -f DIR": readers[0].out(), "muster logs -f HOST:PORT": readers[1].out(),
	}
	for from, text := range said {
		for _, what := range []string{"line", "error"} {
			if what == "line" && from == "stderr of --tee" || what == "error" && from == "stdout of --tee" {
				continue
			}
			next := 1
			for _, m := range regexp.MustCompile(`(?m)^\[[^\]]*\]: ?`+what+` (\d+)$`).FindAllStringSubmatch(text, -1) {
				if m[1] != itoa(next) {
					t.Errorf("%s: %s %s where %d is to come", from, what, m[1], next)
					next = number(m[1])
				}
				next++
			}
			if next != total+1 {
				t.Errorf("%s: the last %s is %d of %d", from, what, next-1, total)
			}
		}
	}
	run(t, launcher{"muster report", []string{filepath.Join(bin, "muster"), "report"}}, setup{}, logs).want(0).tells("the last words")
}
