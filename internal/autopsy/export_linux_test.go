package autopsy

// ParseNet reads a table of sockets as /proc shows it.
func ParseNet(text []byte, protocol string) map[uint64]Socket {
	sockets := map[uint64]Socket{}
	parseSockets(text, protocol, sockets)
	return sockets
}

// For tests of what is not exported.
var (
	ParseSyscall     = parseSyscall
	ParseKernelStack = parseKernelStack
	Appended         = appended
	SendSignal       = sendSignal
	OpenTrusted      = openTrusted
	Trigger          = trigger
	ReadBounded      = readBounded
	ReadEnd          = readEnd
)
