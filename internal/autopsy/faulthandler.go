package autopsy

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"
)

// ParseFaulthandler reads what Python's faulthandler writes about all threads.
// Other lines, before it, between threads and after it, are skipped. Where there is more than
// one dump the threads of the last one count.
// Source: dump_traceback and dump_frame in Python/traceback.c.
func ParseFaulthandler(text []byte) ([]Thread, error) {
	var threads []Thread
	inside := false // a thread's frames
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n")
		if head, ok := parseThreadHead(line); ok {
			if slices.ContainsFunc(threads, func(t Thread) bool { return t.ID == head.ID }) {
				threads = nil // the beginning of the next dump
			}
			if inside = len(threads) < maxThreads; inside {
				threads = append(threads, head)
			}
			continue
		}
		if !inside {
			continue
		}
		t := &threads[len(threads)-1]
		frame, ok := parseFaultFrame(line)
		switch {
		case ok && len(t.Frames) < maxFrames:
			t.Frames = append(t.Frames, frame)
		case !ok && !strings.HasPrefix(line, "  "):
			inside = false
		}
	}
	if len(threads) == 0 {
		return nil, errors.New("no thread's traceback in its output")
	}
	markMain(threads)
	sortThreads(threads)
	return bound(threads), nil
}

// parseThreadHead reads the line before a thread's frames:
//
//	Thread 0x00007f01 (most recent call first):
//	Current thread 0x00007f01 [name] (most recent call first):
func parseThreadHead(line string) (Thread, bool) {
	rest, ok := strings.CutPrefix(line, "Thread 0x")
	if !ok {
		if rest, ok = strings.CutPrefix(line, "Current thread 0x"); !ok {
			return Thread{}, false
		}
	}
	rest, ok = strings.CutSuffix(rest, " (most recent call first):")
	if !ok {
		return Thread{}, false
	}
	id, name, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseUint(id, 16, 64)
	if err != nil {
		return Thread{}, false
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	return Thread{Name: name, ID: "0x" + strconv.FormatUint(n, 16)}, true
}

// parseFaultFrame reads
//
//	File "/srv/train.py", line 16 in main
func parseFaultFrame(line string) (Frame, bool) {
	rest, ok := strings.CutPrefix(line, `  File "`)
	if !ok {
		return Frame{}, false
	}
	end := strings.LastIndex(rest, `", line `)
	if end < 0 {
		return Frame{}, false
	}
	number, function, ok := strings.Cut(rest[end+len(`", line `):], " in ")
	if !ok {
		return Frame{}, false
	}
	n, err := strconv.Atoi(number)
	if err != nil {
		n = 0 // "???"
	}
	return Frame{Function: function, File: rest[:end], Line: n}, true
}

// markMain marks the main thread, which faulthandler does not name: the one that
// runs a module, else the oldest, which is the last.
func markMain(threads []Thread) {
	for i := len(threads) - 1; i >= 0; i-- {
		frames := threads[i].Frames
		if len(frames) > 0 && frames[len(frames)-1].Function == "<module>" {
			threads[i].Main = true
			return
		}
	}
	for i := len(threads) - 1; i >= 0; i-- {
		frames := threads[i].Frames
		if len(frames) > 0 && !strings.HasPrefix(frames[len(frames)-1].Function, "_bootstrap") {
			threads[i].Main = true
			return
		}
	}
}

// sortThreads puts the main thread first and the others in order of their
// numbers.
func sortThreads(threads []Thread) {
	slices.SortStableFunc(threads, func(a, b Thread) int {
		if a.Main != b.Main {
			if a.Main {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.TID, b.TID)
	})
}
