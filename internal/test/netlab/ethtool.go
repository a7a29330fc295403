//go:build linux

package netlab

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// splitSegments makes an interface of a network namespace cut TCP segments to the
// size of packets before it sends them, as ethtool -K IFACE tso off does.
func splitSegments(net *os.File, iface string) error {
	return ethtool(net, unix.ETHTOOL_STSO, iface)
}

// settle waits until the kernel has acted on a change of the carrier of interfaces.
// It does so a moment later in a thread of its own, and loses packets until then,
// unless somebody asks for the link's state (since Linux 6.7).
func settle(net *os.File, ifaces ...string) error {
	return ethtool(net, unix.ETHTOOL_GLINK, ifaces...)
}

// ethtool sends each interface of a network namespace a command with the value 0.
func ethtool(net *os.File, command uint32, ifaces ...string) error {
	return onThread(func() error {
		if err := enter(net); err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var errs []error
		for _, iface := range ifaces {
			errs = append(errs, ethtoolOne(fd, command, iface))
		}
		return errors.Join(errs...)
	})
}

func ethtoolOne(fd int, command uint32, iface string) error {
	// Source: struct ethtool_value in linux/ethtool.h, struct ifreq in linux/if.h.
	value := struct{ command, data uint32 }{command, 0}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:unix.IFNAMSIZ-1], iface)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return fmt.Errorf("ethtool command %#x to %s: %w", command, iface, errno)
	}
	return nil
}
