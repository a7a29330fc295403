package timer

// drop forgets a process and all its timers. What it returns is to be called
// without the lock, or where no time matters.
func (s *Server) drop(p *process) (free func()) {
	s.unload(p)
	p.gone = true
	if s.procs[p.handle.pid] == p {
		delete(s.procs, p.handle.pid)
	}
	if s.last == p {
		s.last = nil
	}
	if p.reaping {
		return func() {} // whoever reaps it closes the handle
	}
	return p.handle.close
}

// unload takes a process' timers away. It has no map for new ones then.
func (s *Server) unload(p *process) heap[entry, *entry] {
	if p.at >= 0 {
		s.queue.remove(p.at)
	}
	timers := p.heap
	s.stats.Timers -= len(p.timers)
	s.scopes -= p.scopes
	p.timers, p.heap, p.scopes = nil, nil, 0
	return timers
}

func (s *Server) dropAll() (free func()) {
	procs := s.procs
	s.procs, s.queue, s.last = map[int]*process{}, nil, nil
	clear(s.refused)
	s.stats.Timers, s.scopes = 0, 0
	s.arm()
	var idle []*handle
	for _, p := range procs {
		p.gone, p.at, p.timers, p.heap, p.scopes = true, -1, nil, nil, 0
		if !p.reaping { // else whoever reaps it closes the handle
			idle = append(idle, p.handle)
		}
	}
	return func() {
		for _, h := range idle {
			h.close()
		}
	}
}

// died is called when a process has ended.
func (s *Server) died(pid int, id int32) {
	s.mu.Lock()
	free := func() {}
	if p := s.procs[pid]; p != nil && p.handle.id == id {
		free = s.drop(p)
		s.arm()
	}
	s.mu.Unlock()
	free()
}

// Reset drops all timers and from now on asks owns (nil: every process is owned)
// instead of Config.Owns: it makes a server fit for the next attempt of a worker
// group, while those who write requests notice nothing. It emits EventStopped and
// EventStarted, as PyTorch's agent does, which makes a new server. Requests of
// workers that owns already knows are never lost; expiries under way are finished.
func (s *Server) Reset(owns func(pid int) bool) {
	s.emit(EventStopped, nil)
	s.mu.Lock()
	s.owns = owns
	s.attempt++
	free := s.dropAll()
	s.mu.Unlock()
	free()
	s.emit(EventStarted, nil)
}

// Clear drops all timers of processes, and of those that have ended.
// Source: clear_timers in file_based_local_timer.py.
func (s *Server) Clear(pids ...int) {
	s.mu.Lock()
	var frees []func()
	for _, pid := range pids {
		if p := s.procs[pid]; p != nil {
			frees = append(frees, s.drop(p))
		}
	}
	for _, p := range s.procs {
		// The watcher knows of the others.
		if (p.handle.fd < 0 || s.state != running) && !p.reaping && !p.handle.alive() {
			frees = append(frees, s.drop(p))
		}
	}
	s.arm()
	s.mu.Unlock()
	for _, free := range frees {
		free()
	}
}
