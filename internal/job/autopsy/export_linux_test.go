package autopsy

// For tests of what is not exported.
var (
	ParseSyscall = parseSyscall
	OpenTrusted  = openTrusted
	Trigger      = trigger
)
