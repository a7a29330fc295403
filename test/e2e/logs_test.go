//go:build linux

package e2e

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// chatter is what the workers of the recorded samples say, awkward bytes
// included: a line in two parts, bytes that are not UTF-8, control characters,
// \r\n, an empty line, no newline at the end.
var chatter = []string{
	`r0:print:first 0\n`, `r0:error:warn apple 0\n`, `r1:print:first 1\n`, `r1:error:warn apple 1\n`,
	`print:part`, `print:ial\n`,
	`print:bad\xff\xfeutf8\rcr\vvt\fff\xe2\x80\xa8ls\n`,
	`print:crlf\r\n\r\nend no newline`, `exit:0`,
}

func chatterOf(rank int) string {
	return fmt.Sprintf("first %d\npartial\nbad\xff\xfeutf8\rcr\vvt\fff\u2028ls\ncrlf\r\n\r\nend no newline", rank)
}

// tree lists the files and directories under dir, with placeholders for what is
// random, and returns the contents of the files as well.
func tree(t *testing.T, dir string) (names []string, files map[string]string) {
	t.Helper()
	files = map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		name = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f-]{27}_`).ReplaceAllString(name, "UUID_")
		name = regexp.MustCompile(`^([^/]*)_[a-z0-9_]{8}(/|$)`).ReplaceAllString(name, "${1}_RAND8$2")
		names = append(names, name)
		if e.Type().IsRegular() {
			files[name] = contents(t, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names, files
}

// The log directory looks as torchrun's does, name by name and, for what workers
// wrote, byte by byte.
func TestLogTreeEqualsTorchrun(t *testing.T) {
	t.Parallel()
	steps := slices.Clone(chatter)
	for _, tt := range []struct {
		name  string
		flags []string
		fail  bool
	}{
		{name: "tee", flags: []string{"-t", "3"}},
		{name: "redirect by rank", flags: []string{"-r", "0:1,1:2", "--rdzv-id", "job7", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"}},
		{name: "filters", flags: []string{"-t", "0:3,1:1", "-r", "1:2", "--duplicate-stdout-filters", "none such", "--duplicate-stderr-filters", "none such"}},
		{name: "restart", flags: []string{"-r", "2", "--max-restarts", "1"}, fail: true},
		{name: "nothing", flags: nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var names [2][]string
			var files [2]map[string]string
			for i, l := range []launcher{muster(t), torchrun(t)} {
				dir := filepath.Join(t.TempDir(), "made", "by", "it")
				program := slices.Concat(tt.flags, []string{"--no-python"}, worker(steps...))
				status := 0
				if tt.fail {
					program = slices.Concat(tt.flags, []string{"--no-python"}, worker("r1:error:sorry\\n", "r1:exit:3", "hang"))
					status = 1
				}
				run(t, l, setup{forked: true}, "--nproc-per-node 2 --log-dir "+dir, program...).want(status)
				names[i], files[i] = tree(t, dir)
			}
			// Ours also has how the job and its time went, and the report for machines where it failed.
			own := func(s string) bool {
				return slices.Contains([]string{"report.json", "job.jsonl", "time.jsonl"}, filepath.Base(s))
			}
			names[0] = slices.DeleteFunc(names[0], own)
			maps.DeleteFunc(files[0], func(name, _ string) bool { return own(name) })
			if diff := cmp.Diff(names[1], names[0]); diff != "" {
				t.Errorf("tree (-torchrun +muster)\n%s", diff)
			}
			if diff := cmp.Diff(files[1], files[0]); diff != "" {
				t.Errorf("contents (-torchrun +muster)\n%s", diff)
			}
		})
	}
}

// linesOf returns the console lines that begin with the prefix, without it.
func linesOf(console, prefix string) []string {
	var lines []string
	for line := range strings.SplitSeq(strings.TrimSuffix(console, "\n"), "\n") {
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			lines = append(lines, rest)
		}
	}
	return lines
}

// Tee'd bytes come out as they went in, each line whole and behind its prefix.
func TestTee(t *testing.T) {
	t.Parallel()
	j := run(t, muster(t), setup{}, "--standalone --nproc-per-node 2 --tee 3", slices.Concat([]string{"--no-python"}, worker(chatter...))...).want(0)
	for rank := range 2 {
		prefix := fmt.Sprintf("[default%d]:", rank)
		want := strings.Split(strings.ReplaceAll(chatterOf(rank), "utf8\rcr", "utf8\r"+prefix+"cr"), "\n")
		if diff := cmp.Diff(want, linesOf(j.out(), prefix)); diff != "" {
			t.Errorf("rank %d, stdout (-want +got)\n%s\n%q", rank, diff, j.out())
		}
		if diff := cmp.Diff([]string{"warn apple " + strconv.Itoa(rank)}, linesOf(j.errs(), prefix)); diff != "" {
			t.Errorf("rank %d, stderr (-want +got)\n%s", rank, diff)
		}
	}
	if n := strings.Count(j.out(), "\n"); n != 12 {
		t.Errorf("%d lines, want 12:\n%q", n, j.out())
	}
}

// Templates, rank filter and line filters together, as recorded from torchrun,
// but for whole lines, and for redirected ranks too.
func TestFilters(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	host, _ := os.Hostname()
	host, _, _ = strings.Cut(host, ".")
	prefix := "[1/1/tr/" + host + "/${nope}/1/$] "
	j := run(t, muster(t), setup{}, "--standalone --nproc-per-node 2", slices.Concat([]string{
		"-t", "0:3,1:1", "-r", "1:2", "--local-ranks-filter", "1",
		"--duplicate-stdout-filters", "part,first,,x", "--duplicate-stderr-filters", "apple",
		"--log-line-prefix-template", "[${rank}/${local_rank}/${role_name}/${hostname}/${nope}/$rank/$$] ",
		"--role", "tr", "--log-dir", dir, "--no-python"}, worker(chatter...))...).want(0)
	want := ""
	for line := range strings.SplitSeq(strings.ReplaceAll(chatterOf(1), "utf8\rcr", "utf8\r"+prefix+"cr"), "\n") {
		want += prefix + line + "\n"
	}
	if diff := cmp.Diff(want, j.out()); diff != "" {
		t.Errorf("console (-want +got)\n%s", diff)
	}
	if !regexp.MustCompile(`^muster: log files in \S+\n$`).MatchString(j.errs()) {
		t.Errorf("stderr has %q", j.errs())
	}
	if got := contents(t, one(t, dir, "*/attempt_0/filtered_stdout.log")); got != prefix+"partial\n" {
		t.Errorf("filtered_stdout.log has %q", got)
	}
	if got := contents(t, one(t, dir, "*/attempt_0/filtered_stderr.log")); got != prefix+"warn apple 1\n" {
		t.Errorf("filtered_stderr.log has %q", got)
	}
}

// Busy workers: every line arrives, whole, and in its worker's order.
func TestNoLineIsLostOrTorn(t *testing.T) {
	t.Parallel()
	const n = 20_000
	j := workers(t, muster(t), setup{}, "--standalone --nproc-per-node 4 -t 3", fmt.Sprintf("flood:%d", n), "exit:0").want(0)
	next := map[string]int{}
	for line := range strings.Lines(j.out()) {
		prefix, text, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "]:")
		want := fmt.Sprintf("line %d of rank %s", next[prefix], strings.TrimPrefix(prefix, "[default"))
		if !ok || text != want {
			t.Fatalf("after %d lines: %q, want %q", next[prefix], line, want)
		}
		next[prefix]++
	}
	for _, rank := range []string{"0", "1", "2", "3"} {
		if got := next["[default"+rank]; got != n {
			t.Errorf("%d lines of rank %s, want %d", got, rank, n)
		}
	}
}

// small mounts a file system of a few KiB.
func small(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("muster-e2e", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("needs to mount a small file system: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// The disk fills up: workers that bear it continue, what was written is there, and
// the loss is told.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	dir := small(t, "256k")
	j := workers(t, muster(t), setup{}, "--standalone --nproc-per-node 2 -r 1 --log-dir "+dir, "flood:50000", "report:done", "exit:0")
	j.await("done", "done").want(0).says("no room")
	written := 0 // one worker may have filled the disk before the other began
	for rank := range 2 {
		got := contents(t, one(t, dir, fmt.Sprintf("*/attempt_0/%d/stdout.log", rank)))
		written += len(got)
		if want := fmt.Sprintf("line 0 of rank %d\nline 1 of rank %d\n", rank, rank); got != "" && !strings.HasPrefix(got, want) {
			t.Errorf("the log of rank %d begins with %.80q", rank, got)
		}
	}
	if written < 100<<10 {
		t.Errorf("the logs have %d bytes", written)
	}
}

// It was full from the start: the job runs, and says that there are no logs.
func TestDiskFullFromTheStart(t *testing.T) {
	t.Parallel()
	dir := small(t, "64k")
	// Leave room for the directories but not for a byte of output.
	if err := os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 64<<10), 0o666); err != nil {
		t.Fatal(err)
	}
	j := workers(t, muster(t), setup{}, "--standalone --nproc-per-node 2 -t 1 --log-dir "+dir, "flood:100", "report:done", "exit:0")
	j.await("done", "done").want(0).says("no room")
}
