package autopsy

import "cmp"

// Native is what the kernel knows about a process.
type Native struct {
	// Resident, Peak and Shared are its memory in RAM, the most it ever was, and
	// how much of it is shared, in bytes.
	Resident int64 `json:"resident_bytes,omitempty"`
	Peak     int64 `json:"peak_bytes,omitempty"`
	Shared   int64 `json:"shared_bytes,omitempty"`
	// Window is how long CPU time was measured, CPU how much of it the process
	// used, in seconds. More than one thread may use more than the window.
	Window float64 `json:"window_seconds,omitempty"`
	CPU    float64 `json:"cpu_seconds"`
	// ThreadCount is how many threads there are; Threads has at most 512.
	ThreadCount int            `json:"thread_count,omitempty"`
	Threads     []NativeThread `json:"threads,omitempty"`
	Problems    []string       `json:"problems,omitempty"`
}

// A NativeThread is what the kernel knows about a thread.
type NativeThread struct {
	TID   int    `json:"tid"`
	Name  string `json:"name"`
	State string `json:"state"`
	// WaitChannel is the kernel function in which it sleeps, Syscall the system
	// call that it is in.
	WaitChannel string `json:"wait_channel,omitempty"`
	Syscall     string `json:"syscall,omitempty"`
	// CPU is what it used within the window, in seconds.
	CPU float64 `json:"cpu_seconds"`
}

// Uninterruptible returns the threads that not even SIGKILL ends at once.
func (n *Native) Uninterruptible() (tids []int) {
	for _, t := range n.Threads {
		if t.State == stateDisk {
			tids = append(tids, t.TID)
		}
	}
	return tids
}

// states spell the state letters of /proc out.
var states = map[byte]string{'R': "running", 'S': "sleeping", 'D': stateDisk, 'T': stateStopped, 't': stateTraced,
	'Z': stateZombie, 'X': stateGone, 'x': stateGone, 'I': "idle"}

func stateWord(letter byte) string { return cmp.Or(states[letter], "state "+string(rune(letter))) }
