package limits

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/muster-run/muster/internal/procfs"
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
		mine := false
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			switch {
			case len(fields) > 1 && fields[0] == "Uid:":
				mine = fields[1] == strconv.Itoa(uid)
			case len(fields) > 1 && fields[0] == "Threads:" && mine:
				n, _ := strconv.Atoi(fields[1])
				total += n
			}
		}
	}
	return total, nil
}
