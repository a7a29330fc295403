package limits

import (
	"errors"
	"os"
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
	dir, err := os.Open("/proc")
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return 0, err
	}
	total := 0
	for _, name := range names {
		if name[0] < '1' || name[0] > '9' {
			continue
		}
		text, err := procfs.ReadFile("/proc/" + name + "/status")
		if err != nil {
			continue
		}
		if real, _, _ := strings.Cut(procfs.Field(text, "Uid:"), "\t"); real == strconv.Itoa(uid) {
			n, _ := strconv.Atoi(procfs.Field(text, "Threads:"))
			total += n
		}
	}
	return total, nil
}
