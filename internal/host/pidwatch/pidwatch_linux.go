// Package pidwatch tells when processes end.
//
// The pidfds of a Set are in one epoll set, which is in the runtime's poller: one
// goroutine waits for any number of processes, and takes no thread. With a goroutine for
// each process, several that end at once would be reported in any order.
package pidwatch

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Set is the processes whose ends are awaited. Its methods may be called
// concurrently, except that only one Run continues at a time.
type Set struct {
	file *os.File
	conn syscall.RawConn
}

// New returns an empty Set. The caller closes it.
func New() (*Set, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch processes: %w", err)
	}
	_ = unix.SetNonblock(fd, true)
	s := &Set{file: os.NewFile(uintptr(fd), "epoll of processes")}
	s.conn, err = s.file.SyscallConn()
	return s, err
}

// Add lets Run report the end of the process behind a pidfd, once, with this key.
// Closing the pidfd before takes the process out of the Set. After Close the error
// is os.ErrClosed.
func (s *Set) Add(pidfd int, key uint64) error {
	var err error
	if s.conn.Control(func(epoll uintptr) {
		err = unix.EpollCtl(int(epoll), unix.EPOLL_CTL_ADD, pidfd,
			&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(key), Pad: int32(key >> 32)})
	}) != nil {
		return os.ErrClosed
	}
	return err
}

// Run calls ended with the key of each process that has ended, in the order in
// which the processes ended, until Close is called or ended returns false.
func (s *Set) Run(ended func(key uint64) bool) {
	var ready [64]unix.EpollEvent
	for {
		n := 0
		err := s.conn.Read(func(epoll uintptr) bool {
			var err error
			n, err = unix.EpollWait(int(epoll), ready[:], 0)
			return n > 0 || err != nil && err != unix.EINTR
		})
		if err != nil || n <= 0 {
			return
		}
		for _, r := range ready[:n] {
			if !ended(uint64(uint32(r.Fd)) | uint64(uint32(r.Pad))<<32) {
				return
			}
		}
	}
}

// Close ends Run.
func (s *Set) Close() { s.file.Close() }
