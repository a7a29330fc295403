package limits

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// limited is the first argument of a test binary that is a child with limits.
const limited = "limited"

func TestMain(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != limited {
		os.Exit(m.Run())
	}
	if err := child(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// child prints what Check says of args[0] workers with at
// most args[1] open files and args[2] processes.
func child(args []string) error {
	var n [3]uint64
	for i, arg := range args {
		var err error
		if n[i], err = strconv.ParseUint(arg, 10, 32); err != nil {
			return err
		}
	}
	for resource, limit := range map[int]uint64{unix.RLIMIT_NOFILE: n[1], unix.RLIMIT_NPROC: n[2]} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit / 2, Max: limit}); err != nil {
			return err
		}
	}
	fmt.Println(Check(int(n[0])))
	var files, processes unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &processes); err != nil {
		return err
	}
	fmt.Printf("%d of %d, %d of %d\n", files.Cur, files.Max, processes.Cur, processes.Max)
	return nil
}

func TestCheck(t *testing.T) {
	const nobody = 65534
	for _, tt := range []struct {
		name                      string
		workers, files, processes int
		root                      bool
		want                      []string // lines; # is any number
	}{
		{"enough files", 4, 1000, 2000, true, []string{"<nil>", "500 of 1000, 1000 of 2000"}},
		{"raised as far as necessary", 40, 1000, 2000, true, []string{"<nil>", "544 of 1000, 1000 of 2000"}},
		{"a hard limit of 1024", 80, 1024, 2000, true, []string{"<nil>", "1024 of 1024, 1000 of 2000"}},
		{"too few files", 100, 1000, 2000, true, []string{
			"the limit of open files (ulimit -n) is 1000, but 100 workers need 1264; raise the hard limit, or start fewer workers",
			"500 of 1000, 1000 of 2000"}},
		{"root may have more processes", 10, 1000, 20, true, []string{"<nil>", "500 of 1000, 10 of 20"}},
		{"both too low", 100, 1000, 90, false, []string{
			"the limit of open files (ulimit -n) is 1000, but 100 workers need 1264; raise the hard limit, or start fewer workers",
			"the limit of processes (ulimit -u) is 90, but 100 workers need #, on top of the # threads and processes that the user has already; raise the hard limit, or start fewer workers",
			"500 of 1000, 45 of 90"}},
		{"enough", 100, 10_000, 19_000, false, []string{"<nil>", "5000 of 10000, 9500 of 19000"}},
		{"both raised", 500, 10_000, 1000, false, []string{"<nil>", "6064 of 10000, # of 1000"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe", limited, fmt.Sprint(tt.workers), fmt.Sprint(tt.files), fmt.Sprint(tt.processes))
			cmd.Stderr = os.Stderr
			switch root := os.Geteuid() == 0; {
			case tt.root && !root:
				t.Skip("needs root")
			case root && !tt.root:
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			}
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
			if strings.Contains(string(out), ", 500 of 1000") {
				t.Errorf("got %q, want the limit of processes raised", out)
			}
			for i, want := range tt.want {
				if strings.Contains(want, "#") && i < len(got) {
					got[i] = numbers(got[i], want)
				}
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// numbers replaces those numbers in text by # that are # in pattern.
func numbers(text, pattern string) string {
	words, wanted := strings.Fields(text), strings.Fields(pattern)
	for i, word := range words {
		if i < len(wanted) && strings.HasPrefix(wanted[i], "#") {
			words[i] = "#" + strings.TrimLeft(word, "0123456789")
		}
	}
	return strings.Join(words, " ")
}

// What this program may have is enough for a worker.
func TestCheckOwnLimits(t *testing.T) {
	if err := Check(1); err != nil {
		t.Error(err)
	}
}

// The connections to the stores need descriptors beside the workers'.
func TestCheckConnections(t *testing.T) {
	if err := CheckConnections(1, 1); err != nil {
		t.Error(err)
	}
	err := CheckConnections(2, 1<<40)
	if err == nil || !strings.Contains(err.Error(), "but 2 workers need 1099511627864, with 1099511627776 connections to the job's stores, which this host holds; raise") {
		t.Error(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if got, want := Connections(2), int(limit.Cur-88); limit.Cur > 200 && got != want {
		t.Errorf("%d connections, want %d", got, want)
	}
	if got, want := Connections(1<<20), int(limit.Cur-limit.Cur/2); limit.Cur < 1<<24 && got != want {
		t.Errorf("%d connections, want %d", got, want)
	}
}

func TestThreads(t *testing.T) {
	all, err := threads()
	if err != nil {
		t.Fatal(err)
	}
	mine, err := threadsOf(os.Getuid())
	if err != nil {
		t.Fatal(err)
	}
	if mine < 1 || all < 1 {
		t.Errorf("%d threads on the machine, %d of this user", all, mine)
	}
}
