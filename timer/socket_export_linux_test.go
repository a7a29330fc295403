package timer

// Beat notes a heartbeat as if a process had sent it.
func Beat(s *SocketServer, pid int, step int64) { s.beat(pid, step) }
