//go:build linux

package netlab

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// onThread calls f on a thread of its own, whose namespaces f may change: the thread
// ends afterwards. What f starts must not care when its starting thread ends.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// Go cannot end the main thread; it would stay in f's namespaces, and
			// with it the process as /proc shows it. Hold it while another is used.
			err := onThread(f)
			runtime.UnlockOSThread()
			done <- err
			return
		}
		done <- f() // still locked, so the thread ends with the goroutine
	}()
	return <-done
}

// newNetwork makes a network namespace that lives as long as the returned file, and
// sets what its interfaces start with: IPv6, if there is any, without a second of
// duplicate address detection.
func newNetwork() (*os.File, error) {
	var ns *os.File
	err := onThread(func() error {
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err != nil {
			return fmt.Errorf("new network namespace: %w", err)
		}
		for _, name := range []string{"all", "default"} {
			dir := "/proc/sys/net/ipv6/conf/" + name
			if _, err := os.Stat(dir); err != nil {
				continue
			}
			if err := os.WriteFile(dir+"/disable_ipv6", []byte("0"), 0); err != nil {
				return err
			}
			if err := os.WriteFile(dir+"/accept_dad", []byte("0"), 0); err != nil {
				return err
			}
		}
		ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	return ns, err
}
