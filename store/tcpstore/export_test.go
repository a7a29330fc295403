package tcpstore

// Waiting returns how many clients of a relay wait.
func (s *Server) Waiting() (n int) {
	s.m.Lock()
	defer s.m.Unlock()
	if s.relay.link != nil {
		for _, c := range s.relay.link.clients {
			if c.wait.relay {
				n++
			}
		}
	}
	return n
}
