package failure

// A Traceback is an account of a crash found in a worker's stderr.
type Traceback struct {
	// Kind says whose: "python", "faulthandler", "native" (C++, C library) or "go".
	Kind string
	// Text is all of it, without line prefixes, terminal sequences and final newline.
	Text string
	// Exception is its one-line gist: "ValueError: boom".
	Exception string
	// Cut says that the beginning was no longer there.
	Cut bool
}

// Lift finds the account in stderr that explains an end with the given exit code (-N for signal N).
func Lift(stderr []byte, exitCode int) (Traceback, bool) { return Traceback{}, false }
