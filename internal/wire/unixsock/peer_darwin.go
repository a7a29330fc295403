package unixsock

import "golang.org/x/sys/unix"

// peer asks the kernel who is at the other end.
func peer(fd int) (Peer, error) {
	cred, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return Peer{}, err
	}
	pid, err := unix.GetsockoptInt(fd, unix.SOL_LOCAL, unix.LOCAL_PEERPID)
	return Peer{UID: int(cred.Uid), PID: pid}, err
}
