package doctor

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/children"
	"github.com/muster-run/muster/internal/host/kmsg"
	"github.com/muster-run/muster/internal/host/limits"
	"github.com/muster-run/muster/internal/wire/hostport"
)

// A System is the machine as the checks see it. Its functions may be called
// concurrently.
type System struct {
	Hostname   func() (string, error)
	Lookup     func(name string) (string, bool) // environment
	LookupHost func(ctx context.Context, name string) ([]netip.Addr, error)
	Interfaces func() ([]Interface, error)
	// Dial connects by TCP. mss, if not 0, is the largest segment to use, bytes.
	Dial func(ctx context.Context, addr string, mss int) (net.Conn, error)
	// TryBind reports whether a port of an address of this host ("" for all) is free.
	TryBind func(host string, port int) error
	// Root is the file system: /proc and /sys.
	Root fs.FS
	// Disk says how full the file system of a path is.
	Disk func(path string) (Disk, error)
	// TryWrite writes size bytes to a new file in a directory and removes it.
	TryWrite func(dir string, size int) error
	// RLimit returns a limit of this process, soft and hard.
	RLimit func(resource int) (soft, hard uint64, err error)
	// Limits reports whether so many workers may be started.
	Limits func(workers int) error
	// TryCgroup makes a cgroup where workers' would be, and removes it.
	TryCgroup func() error
	// Geteuid returns the user.
	Geteuid func() int
	// Run runs a program until ctx is done. Of its output the end is kept.
	Run func(ctx context.Context, program string, args ...string) (stdout, stderr []byte, err error)
	// KernelLog calls each for every message of the kernel, if this user may read them.
	KernelLog func(each func(record string))
	// Now is the clock that is compared with other hosts'.
	Now func() time.Time
}

// An Interface is one of the network.
type Interface struct {
	Name     string
	MTU      int // bytes
	Up       bool
	Loopback bool
	Addrs    []netip.Addr
}

// A Disk says how full a file system is.
type Disk struct {
	Size, Free uint64 // bytes, Free for this user
}

// Real returns the machine that the program runs on.
func Real() *System {
	return &System{
		Hostname:   os.Hostname,
		Lookup:     os.LookupEnv,
		LookupHost: hostport.Lookup,
		Interfaces: interfaces,
		Dial:       dial,
		TryBind:    tryBind,
		Root:       os.DirFS("/"),
		Disk:       disk,
		TryWrite:   tryWrite,
		RLimit: func(resource int) (uint64, uint64, error) {
			var l unix.Rlimit
			err := unix.Getrlimit(resource, &l)
			return l.Cur, l.Max, err
		},
		Limits:    limits.Check,
		TryCgroup: tryCgroup,
		Geteuid:   os.Geteuid,
		Run:       run,
		KernelLog: kmsg.Read,
		Now:       time.Now,
	}
}

func interfaces() ([]Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var list []Interface
	for _, i := range all {
		one := Interface{Name: i.Name, MTU: i.MTU, Up: i.Flags&net.FlagUp != 0, Loopback: i.Flags&net.FlagLoopback != 0}
		addrs, _ := i.Addrs() // gone meanwhile
		for _, a := range addrs {
			if ipnet, ok := a.(*net.IPNet); ok {
				if addr, ok := netip.AddrFromSlice(ipnet.IP); ok && !addr.IsLinkLocalUnicast() {
					one.Addrs = append(one.Addrs, addr.Unmap())
				}
			}
		}
		list = append(list, one)
	}
	return list, nil
}

func dial(ctx context.Context, addr string, mss int) (net.Conn, error) {
	var d net.Dialer
	if mss > 0 {
		d.Control = func(_, _ string, c syscall.RawConn) error {
			var set error
			err := c.Control(func(fd uintptr) {
				set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, mss)
			})
			return errors.Join(err, set)
		}
	}
	return d.DialContext(ctx, "tcp", addr)
}

func disk(path string) (Disk, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return Disk{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	block := blockSize(&s)
	return Disk{Size: s.Blocks * block, Free: s.Bavail * block}, nil
}

func tryWrite(dir string, size int) error {
	f, err := os.CreateTemp(dir, ".muster-doctor-*")
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, size))
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}

// maxOutput bounds what is kept of a program's output.
const maxOutput = 1 << 20

// run runs a program, which is killed with all that it has started when ctx is done.
func run(ctx context.Context, program string, args ...string) ([]byte, []byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = 200 * time.Millisecond
	stdout, stderr, err := children.Output(cmd, maxOutput)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return stdout, stderr, err
}
