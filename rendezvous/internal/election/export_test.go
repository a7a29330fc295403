package election

// BridgePID is the process of the bridge, 0 while there is none.
func (e *Election) BridgePID() int { return e.bridge.pid() }

// MemberPID is the process of this host's member, 0 while there is none.
func (e *Election) MemberPID() int { return e.member.pid() }

// Changed is closed at the next change of what Leader returns.
func (e *Election) Changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}

func (m *minder) pid() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.child == nil {
		return 0
	}
	return m.child.cmd.Process.Pid
}
