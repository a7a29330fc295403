package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/cmd/muster/internal/doctor"
)

// What a disk, a kernel or a container refuses is told with what can be done about it.
func TestBrokenHost(t *testing.T) {
	dir := t.TempDir()
	many := doctor.Config{Backend: "etcd", MinNodes: 2, MaxNodes: 2, Host: "b", Members: []string{"b:1"}}
	for _, tt := range []struct {
		name, check string
		cfg         doctor.Config
		broken      func(h *host, s *doctor.System)
		want        []string
	}{
		{"read-only", "log directory", doctor.Config{LogDir: dir}, func(h *host, _ *doctor.System) { h.write[dir] = syscall.EROFS }, []string{
			"failure: " + dir + ": the file system is read-only → give another --log-dir"}},
		{"in a file", "log directory", doctor.Config{LogDir: dir}, func(h *host, _ *doctor.System) {
			h.write[dir] = &fs.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
		}, []string{
			"failure: " + dir + " is not a directory → give another --log-dir"}},
		{"a disk that fails", "log directory", doctor.Config{LogDir: dir}, func(h *host, _ *doctor.System) { h.write[dir] = syscall.EIO }, []string{
			"failure: " + dir + " cannot be written to: input/output error → give another --log-dir"}},
		{"full, and it is not known of what", "log directory", doctor.Config{LogDir: dir}, func(h *host, s *doctor.System) {
			h.write[dir] = &fs.PathError{Op: "write", Path: dir, Err: syscall.ENOSPC}
			s.Disk = func(string) (doctor.Disk, error) { return doctor.Disk{}, syscall.ESTALE }
		}, []string{"failure: " + dir + ": the disk is full: no space left on device → make space there (df -h, df -i; quota), or give another --log-dir"}},
		{"writable, and it is not known how full", "log directory", doctor.Config{LogDir: dir}, func(_ *host, s *doctor.System) {
			s.Disk = func(string) (doctor.Disk, error) { return doctor.Disk{}, syscall.ESTALE }
		}, []string{"warning: stale file handle"}},
		{"temporary files beside the logs", "temporary files", doctor.Config{LogDir: dir}, func(h *host, _ *doctor.System) { h.env["TMPDIR"], h.write[dir] = dir, syscall.EDQUOT }, nil},
		{"temporary files elsewhere", "temporary files", doctor.Config{LogDir: dir + "/logs"}, func(h *host, _ *doctor.System) { h.env["TMPDIR"] = dir; h.write[dir] = syscall.EROFS }, []string{
			"failure: " + dir + ": the file system is read-only → set TMPDIR to a directory of a local disk"}},
		{"shared memory of another system", "shared memory", doctor.Config{}, func(h *host, _ *doctor.System) {
			delete(h.files, "dev/shm")
			for name := range h.files {
				if strings.HasPrefix(name, "proc/self") {
					delete(h.files, name)
				}
			}
		}, nil},
		{"shared memory, and it is not known how full", "shared memory", doctor.Config{}, func(_ *host, s *doctor.System) {
			s.Disk = func(string) (doctor.Disk, error) { return doctor.Disk{}, syscall.EIO }
		}, []string{"warning: input/output error"}},
		{"no memory file", "memory", doctor.Config{}, func(h *host, _ *doctor.System) { delete(h.files, "proc/meminfo") }, nil},
		{"an odd memory file", "memory", doctor.Config{}, func(h *host, _ *doctor.System) { h.files["proc/meminfo"] = &fstest.MapFile{Data: []byte("boo\n")} }, []string{
			"warning: /proc/meminfo does not say how much memory there is"}},
		{"few processes", "limits", doctor.Config{Workers: doctor.Workers{Count: 8}}, func(h *host, _ *doctor.System) { h.euid, h.limits[unix.RLIMIT_NPROC] = 1000, 512 }, []string{
			"ok: any number of files may be open", "warning: the user may have 512 processes and threads (ulimit -Hu), which is little for 8 workers with data loaders → raise the limit…"}},
		{"few processes, of root", "limits", doctor.Config{Workers: doctor.Workers{Count: 8}}, func(h *host, _ *doctor.System) { h.limits[unix.RLIMIT_NPROC] = 512 }, []string{"ok: any number of files may be open"}},
		{"a limit that cannot be read", "limits", doctor.Config{}, func(_ *host, s *doctor.System) {
			s.RLimit = func(int) (uint64, uint64, error) { return 0, 0, syscall.EPERM }
		}, []string{"warning: open files: operation not permitted"}},
		{"no name", "names", doctor.Config{}, func(_ *host, s *doctor.System) {
			s.Hostname = func() (string, error) { return "", errors.New("uname: bad address") }
		}, []string{"failure: this host has no name: uname: bad address → set one with hostnamectl set-hostname NAME"}},
		{"interfaces cannot be listed", "interfaces", doctor.Config{}, func(_ *host, s *doctor.System) {
			s.Interfaces = func() ([]doctor.Interface, error) { return nil, errors.New("netlink: no buffer space") }
		}, []string{"warning: cannot list network interfaces: netlink: no buffer space"}},
		{"loopback and nothing else", "names", many, func(h *host, _ *doctor.System) { h.names["a"], h.ifaces = "127.0.1.1", h.ifaces[:1] }, []string{
			"failure: this host's own name a is 127.0.1.1, a loopback address: Gloo would tell the other hosts to connect to themselves → in /etc/hosts, give a the address of its interface instead, or set GLOO_SOCKET_IFNAME=INTERFACE",
			"failure: the endpoint b has the address 10.0.0.2, but this host has none of that kind (no interface but loopback)…"}},
		{"many interfaces", "interfaces", doctor.Config{}, func(h *host, _ *doctor.System) {
			for i := range 8 {
				h.ifaces = append(h.ifaces, doctor.Interface{Name: fmt.Sprint("ib", i), MTU: 2044, Up: true, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(i)})}})
			}
		}, []string{"ok: eth0 10.0.0.1; ib0 10.1.0.0; ib1 10.1.0.1; ib2 10.1.0.2; ib3 10.1.0.3; ib4 10.1.0.4 and 3 more"}},
		{"health check passes", "health check", doctor.Config{HealthCheck: "true"}, func(*host, *doctor.System) {}, []string{"ok: true: passed in …"}},
		{"another interpreter", "Python", doctor.Config{Python: doctor.Python{Path: "python3"}}, func(h *host, _ *doctor.System) { h.run["python3"] = h.run["/env/python3"] }, []string{"ok: 3.12.1 at python3 (/env/python3)"}},
		{"ROCm", "torch", doctor.Config{}, func(h *host, _ *doctor.System) {
			h.run["/env/python3"] = strings.Replace(h.run["/env/python3"], `"cuda": ""`, `"hip": "7.1"`, 1)
		}, []string{"ok: 2.15.0 for ROCm 7.1, imported in 2s; backends gloo"}},
		{"no NCCL", "devices", doctor.Config{}, func(h *host, _ *doctor.System) {
			h.run["/env/python3"] = strings.Replace(h.run["/env/python3"], `"cuda": ""`, `"cuda": "13.2", "devices": 1`, 1)
			h.files["proc/driver/nvidia/gpus/0000:01:00.0/information"] = &fstest.MapFile{Data: []byte("Device Minor: \t 0\n")}
			h.files["dev/nvidia0"] = &fstest.MapFile{}
		}, []string{"warning: torch sees GPUs but has no NCCL → install a build with NCCL, or use gloo"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := healthy()
			s := h.system()
			tt.broken(h, s)
			same(t, h.foundBy(t, s, tt.cfg, tt.check), tt.want)
		})
	}
}

// What does not answer is not waited for for ever, and what answers late is told with how long that took.
func TestSlowHost(t *testing.T) {
	endless := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for _, tt := range []struct {
		name, check string
		cfg         doctor.Config
		slow        func(h *host, s *doctor.System)
		want        []string
	}{
		{"own name", "names", doctor.Config{Host: "b"}, func(_ *host, s *doctor.System) {
			look := s.LookupHost
			s.LookupHost = func(ctx context.Context, name string) ([]netip.Addr, error) {
				time.Sleep(5 * time.Second)
				return look(ctx, name)
			}
		}, []string{"warning: it took 5s to resolve this host's own name a → look at the name servers in /etc/resolv.conf: probably the first does not answer",
			"warning: it took 5s to resolve the endpoint's name b → look at…"}},
		{"no name server answers", "names", doctor.Config{}, func(_ *host, s *doctor.System) {
			s.LookupHost = func(ctx context.Context, _ string) ([]netip.Addr, error) { return nil, endless(ctx) }
		}, []string{"warning: this host's own name a cannot be resolved: no name server answers (waited 8s)…"}},
		{"an interpreter that does not start", "Python", doctor.Config{}, func(_ *host, s *doctor.System) {
			s.Run = func(ctx context.Context, _ string, _ ...string) ([]byte, []byte, error) {
				return nil, nil, endless(ctx)
			}
		}, []string{"failure: /env/python3: it did not start within 1m0s → set PYTHON_EXEC to another interpreter, or repair this one"}},
		{"an import that does not end", "torch", doctor.Config{}, func(_ *host, s *doctor.System) {
			s.Run = func(ctx context.Context, _ string, _ ...string) ([]byte, []byte, error) {
				return []byte(`MUSTER {"version": "3.12.1"}` + "\n"), nil, endless(ctx)
			}
		}, []string{"failure: cannot be imported: importing it took more than 1m0s → look at the file system that it is on; on many hosts copy the environment to a local disk first"}},
		{"a driver that hangs", "GPUs", doctor.Config{}, func(_ *host, s *doctor.System) {
			s.Run = func(ctx context.Context, _ string, _ ...string) ([]byte, []byte, error) {
				return nil, nil, endless(ctx)
			}
		}, []string{"failure: nvidia-smi does not answer: the driver hangs → see dmesg for NVRM: Xid; reboot the host"}},
		{"a disk whose server is gone", "log directory", doctor.Config{LogDir: "/"}, func(_ *host, s *doctor.System) {
			s.TryWrite = func(string, int) error { time.Sleep(time.Hour); return nil }
		}, []string{"failure: no result within 15s → something hangs: look for a file system or a device that does not answer (dmesg)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := healthy()
				s := h.system()
				tt.slow(h, s)
				same(t, h.foundBy(t, s, tt.cfg, tt.check), tt.want)
				time.Sleep(2 * time.Hour) // what was given up comes to its end
			})
		})
	}
}

// The advice for a port that is in use names one that there is.
func TestAnotherPort(t *testing.T) {
	yes := true
	for port, want := range map[int]string{29400: "for example a:29401", 65534: "for example a:65535", 65535: "for example a:65534"} {
		h := healthy()
		h.bind = syscall.EADDRNOTAVAIL
		cfg := doctor.Config{Backend: "c10d", Host: "a", Port: port}
		cfg.Settings.IsHost = &yes
		if got := strings.Join(h.found(t, cfg, "port"), "\n"); !strings.Contains(got, want+";") {
			t.Errorf("port %d: no %q in %s", port, want, got)
		}
	}
}

// The real machine answers what the checks ask of it.
func TestRealSystem(t *testing.T) {
	s, dir := doctor.Real(), t.TempDir()
	if err := s.TryWrite(dir, 1000); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%d files are left, %v", len(left), err)
	}
	if err := s.TryWrite(filepath.Join(dir, "none"), 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
	if d, err := s.Disk(dir); err != nil || d.Size == 0 || d.Free > d.Size {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := s.Disk(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), dir) {
		t.Errorf("the disk of no directory: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	cancel(interrupted)
	if _, _, err := s.Run(ctx, "/bin/sh", "-c", "sleep 100"); !errors.Is(err, interrupted) {
		t.Errorf("a program that is ended: %v", err)
	}
	out, complaint, err := s.Run(t.Context(), "/bin/sh", "-c", "echo yes; echo no >&2; exit 3")
	if string(out) != "yes\n" || string(complaint) != "no\n" || err == nil {
		t.Errorf("%q, %q, %v", out, complaint, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	if err := s.TryBind("127.0.0.1", port); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port in use: %v", err)
	}
	conn, err := s.Dial(t.Context(), l.Addr().String(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var mss int
	if e := raw.Control(func(fd uintptr) { mss, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG) }); err != nil || e != nil || mss > 1000 || mss < 500 {
		t.Errorf("segments of %d bytes, want 1000 at most; %v, %v", mss, err, e)
	}
}
