package procfs

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestUses(t *testing.T) {
	stat := func(pid, parent int, state byte) Stat {
		threads := 2
		if state == 'Z' {
			threads = 1
		}
		return Stat{PID: pid, Parent: parent, State: state, CPU: time.Duration(pid) * time.Second, Resident: int64(pid) << 10, Threads: threads, Start: 7, Group: pid}
	}
	grouped := stat(45, 99, 'S')
	grouped.Group = 10 // its parent is gone, its group is the worker's
	all := []Stat{
		grouped,
		stat(1, 0, 'S'),
		stat(10, 1, 'S'), stat(11, 10, 'R'), stat(12, 11, 'Z'), // a worker, its child, and the child's zombie
		stat(20, 1, 'Z'),
		stat(30, 31, 'S'), stat(31, 30, 'S'), // numbers were recycled while the list was made
		stat(40, 99, 'S'), // its parent is gone
	}
	got := uses(all, []int{10, 20, 50})
	want := map[int]Use{
		10: {Start: 7, CPU: 78 * time.Second, Resident: 66 << 10, Processes: 3, Threads: 6},
		20: {Start: 7, CPU: 20 * time.Second, Ended: true},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("want -, got +:\n%s", d)
	}
}
