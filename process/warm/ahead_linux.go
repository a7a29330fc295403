package warm

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/host/procfs"
)

// Bounds of what is read ahead: bytes, also half of the memory that is available, readers, what of
// a library is mapped at once, and bytes that the system is asked for at once: of more than a disk's
// read_ahead_kb, which by default is this much, Linux may read the beginning alone.
const (
	maxAhead   = 16 << 30
	readers    = 4
	maxMapping = 8 << 30
	maxAdvice  = 128 << 10
)

// readAhead has the system read files into its page cache, when nobody else wants the disk. A file
// system that hangs keeps it from returning.
func readAhead(ctx context.Context, files []string, log *slog.Logger) {
	if len(files) == 0 {
		return
	}
	begun := time.Now()
	limit, _ := procfs.Available()
	limit = min(limit/2, maxAhead)
	next := make(chan string)
	var sum atomic.Int64
	var all sync.WaitGroup
	for range readers {
		all.Go(func() {
			runtime.LockOSThread() // and never unlocked: what it has set ends with it
			// Of the disk only: where the CPUs are busy, Go's scheduler, and with it this agent, would
			// wait for a thread that does not get on.
			const whoProcess, classIdle = 1, 3 << 13 // IOPRIO_WHO_PROCESS, IOPRIO_CLASS_IDLE
			_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, whoProcess, 0, classIdle)
			for path := range next {
				readFileAhead(path, func(n int64) bool { return sum.Add(n) <= limit && ctx.Err() == nil })
			}
		})
	}
	for _, path := range files {
		if sum.Load() > limit || ctx.Err() != nil {
			break
		}
		next <- path
	}
	close(next)
	all.Wait()
	log.Info("what the workers will import is read ahead", "files", len(files), "bytes", sum.Load(),
		"took", time.Since(begun).Round(time.Millisecond))
}

// readFileAhead reads one file, or the parts of it that mapped names, while more, which it tells what it
// reads next, lets it.
func readFileAhead(line string, more func(n int64) bool) {
	path, parts, _ := strings.Cut(line, "\t")
	f, info, err := safeopen.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	if parts == "" {
		parts = fmt.Sprint(0, " ", info.Size())
	}
	for part := range strings.SplitSeq(parts, "\t") {
		var from, size int64
		if n, _ := fmt.Sscanf(part, "%d %d", &from, &size); n < 2 || from < 0 || size > info.Size()-from {
			continue
		}
		for end := from + size; from < end; from += maxAdvice {
			some := min(end-from, maxAdvice)
			if !more(some) || unix.Fadvise(int(f.Fd()), from, some, unix.FADV_WILLNEED) != nil {
				return
			}
		}
	}
}

// mapped returns which parts of its libraries a process has in memory, as lines of mapsFile: of
// gigabytes that may be little. nil if nobody says.
func mapped(pid int) []string {
	text, err := procfs.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil
	}
	pagemap, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return nil
	}
	defer pagemap.Close()
	const present = 0x80 // in the last byte of an entry
	page := int64(os.Getpagesize())
	libraries := map[string]bool{}
	parts := map[string][]part{}
	for _, pass := range []func(path, perms string, m part, at int64){
		func(path, perms string, _ part, _ int64) {
			libraries[path] = libraries[path] || strings.Contains(perms, "x")
		},
		func(path, _ string, m part, at int64) {
			if !libraries[path] || m.size > maxMapping {
				return
			}
			entries := make([]byte, m.size/page*8)
			n, _ := pagemap.ReadAt(entries, at/page*8)
			for i := 7; i < n; i += 8 {
				if entries[i]&present != 0 {
					parts[path] = appendPart(parts[path], part{m.from + int64(i/8)*page, page})
				}
			}
		},
	} {
		for line := range strings.Lines(string(text)) {
			var from, to, offset int64
			var perms string
			_, path, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " /")
			if n, _ := fmt.Sscanf(line, "%x-%x %s %x", &from, &to, &perms, &offset); n == 4 && ok &&
				!strings.HasSuffix(path, " (deleted)") && !strings.HasPrefix(path, "dev/") {
				pass("/"+strings.TrimLeft(path, " /"), perms, part{offset, to - from}, from)
			}
		}
	}
	var lines []string
	for _, path := range slices.Sorted(maps.Keys(parts)) {
		line := path
		for _, p := range parts[path] {
			line += fmt.Sprintf("\t%d %d", p.from, p.size)
		}
		lines = append(lines, line)
	}
	return lines
}

// A part of a file, in bytes.
type part struct{ from, size int64 }

// appendPart appends a part that may begin in the last one, or soon after it.
func appendPart(list []part, p part) []part {
	const soon = 256 << 10
	if n := len(list); n > 0 && p.from >= list[n-1].from && p.from <= list[n-1].from+list[n-1].size+soon {
		list[n-1].size = max(list[n-1].size, p.from+p.size-list[n-1].from)
		return list
	}
	return append(list, p)
}
