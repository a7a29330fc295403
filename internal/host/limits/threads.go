package limits

import (
	"errors"
	"strconv"
	"strings"

	"github.com/muster-run/muster/internal/host/procfs"
)

// threads returns how many threads exist on the whole machine; a number that
// costs one small read.
func threads() (int, error) {
	text, err := procfs.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 4 {
		return 0, errors.New("no count of threads")
	}
	_, total, _ := strings.Cut(fields[3], "/")
	return strconv.Atoi(total)
}

// threadsOf counts the threads of all processes of a user.
func threadsOf(uid int) (int, error) {
	pids, err := procfs.PIDs()
	total := 0
	for _, pid := range pids {
		text, _ := procfs.ReadFile("/proc/" + strconv.Itoa(pid) + "/status") // of one that has ended: nothing
		if real, _, _ := strings.Cut(procfs.Field(text, "Uid:"), "\t"); real == strconv.Itoa(uid) {
			n, _ := strconv.Atoi(procfs.Field(text, "Threads:"))
			total += n
		}
	}
	return total, err
}
