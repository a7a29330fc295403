package autopsy

import "cmp"

// Native is what the kernel knows about a process.
type Native struct {
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
}

// states spell the state letters of /proc out.
var states = map[byte]string{'R': "running", 'S': "sleeping", 'D': stateDisk, 'T': stateStopped, 't': stateTraced,
	'Z': stateZombie, 'X': stateGone, 'x': stateGone, 'I': "idle"}

func stateWord(letter byte) string { return cmp.Or(states[letter], "state "+string(rune(letter))) }
