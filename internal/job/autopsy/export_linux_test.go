package autopsy

// For tests of what is not exported.
var (
	ParseSyscall = parseSyscall
	SendSignal   = sendSignal
	OpenTrusted  = openTrusted
	Trigger      = trigger
	ReadBounded  = readBounded
)
