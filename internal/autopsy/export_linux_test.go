package autopsy

// For tests of what is not exported.
var (
	ParseSyscall     = parseSyscall
	ParseKernelStack = parseKernelStack
	SendSignal       = sendSignal
	OpenTrusted      = openTrusted
	Trigger          = trigger
	ReadBounded      = readBounded
	ReadEnd          = readEnd
)
