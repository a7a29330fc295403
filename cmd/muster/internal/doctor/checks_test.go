package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/cmd/muster/internal/doctor"
)

// A healthy host has nothing but ok in its report.
func TestHealthyHost(t *testing.T) {
	h := healthy()
	report := doctor.Run(t.Context(), doctor.Config{MinNodes: 1, MaxNodes: 1, Workers: doctor.Workers{Count: 1}, LogDir: "/var/log", System: h.system()})
	if report.Status != doctor.OK || report.Host != "a" || len(report.Lines) < 10 {
		t.Errorf("got %s", show(*report))
	}
}

func TestNames(t *testing.T) {
	many := doctor.Config{Backend: "etcd", MinNodes: 2, MaxNodes: 2, Host: "b", Members: []string{"b:1"}}
	for _, tt := range []struct {
		name   string
		cfg    doctor.Config
		broken func(h *host)
		want   []string
	}{
		{"well", many, func(*host) {}, []string{"ok: a is 10.0.0.1 (…", "ok: the endpoint b is 10.0.0.2 (…"}},
		{"not known", many, func(h *host) { delete(h.names, "a") }, []string{
			"failure: this host's own name a cannot be resolved: no such host → add it to DNS or to /etc/hosts (10.0.0.1 a); Gloo looks…", "ok: the endpoint…"}},
		{"not known, one host", doctor.Config{}, func(h *host) { delete(h.names, "a") }, []string{
			"warning: this host's own name a cannot be resolved: no such host…"}},
		{"servers silent", many, func(h *host) { h.names["b"] = "silence" }, []string{
			"ok: a is…", "failure: the endpoint's name b cannot be resolved: no name server answers (waited …"}},
		{"loopback", many, func(h *host) { h.names["a"] = "127.0.1.1" }, []string{
			"failure: this host's own name a is 127.0.1.1, a loopback address: Gloo would tell the other hosts to connect to themselves → in /etc/hosts, give a the address 10.0.0.1 instead, or set GLOO_SOCKET_IFNAME=eth0", "ok: the endpoint…"}},
		{"loopback, one host", doctor.Config{}, func(h *host) { h.names["a"] = "127.0.1.1" }, []string{"ok: a is 127.0.1.1 (…"}},
		{"another host's", many, func(h *host) { h.names["a"] = "10.0.0.9" }, []string{
			"failure: this host's own name a is 10.0.0.9, which no interface of it has → correct the entry…", "ok: the endpoint…"}},
		{"endpoint is loopback", many, func(h *host) { h.names["b"] = "127.0.1.1" }, []string{
			"ok: a is…", "warning: the endpoint b is 127.0.1.1 here, a loopback address → muster's agents can do with that…"}},
		{"endpoint has IPv6 only", many, func(h *host) { h.names["b"] = "fd00::2" }, []string{
			"ok: a is…", "failure: the endpoint b has the address fd00::2, but this host has none of that kind (eth0 10.0.0.1) → give the endpoint…"}},
		{"endpoint is localhost", doctor.Config{Backend: "etcd", MinNodes: 2, MaxNodes: 2, Host: "localhost", Members: []string{"b:1"}}, func(*host) {}, []string{
			"ok: a is…", "failure: the endpoint localhost means this host on every host: each would wait alone for the others → name one host, for example --rdzv-endpoint=a"}},
		{"endpoint is 127.0.0.1", doctor.Config{Backend: "etcd", MinNodes: 2, MaxNodes: 2, Host: "127.0.0.1", Members: []string{"b:1"}}, func(*host) {}, []string{
			"ok: a is…", "failure: the endpoint 127.0.0.1 means 127.0.0.1 on every host…"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := healthy()
			tt.broken(h)
			same(t, h.found(t, tt.cfg, "names"), tt.want)
		})
	}
}

func TestInterfaces(t *testing.T) {
	many := doctor.Config{Backend: "etcd", MinNodes: 2, MaxNodes: 2, Members: []string{"b:1"}}
	add := func(h *host, name string, up bool, mtu int, addrs ...netip.Addr) {
		h.ifaces = append(h.ifaces, doctor.Interface{Name: name, Up: up, MTU: mtu, Addrs: addrs})
	}
	for _, tt := range []struct {
		name   string
		cfg    doctor.Config
		broken func(h *host)
		want   []string
	}{
		{"well", many, func(*host) {}, []string{"ok: eth0 10.0.0.1"}},
		{"chosen well", many, func(h *host) { h.env["GLOO_SOCKET_IFNAME"] = "eth0" }, []string{"ok: GLOO_SOCKET_IFNAME=eth0: Gloo uses 10.0.0.1"}},
		{"not there", many, func(h *host) { h.env["GLOO_SOCKET_IFNAME"] = "ib0" }, []string{
			"failure: GLOO_SOCKET_IFNAME=ib0: there is no such interface; this host has eth0 10.0.0.1 → set GLOO_SOCKET_IFNAME=eth0, or unset it"}},
		{"loopback", many, func(h *host) { h.env["NCCL_SOCKET_IFNAME"] = "lo" }, []string{"failure: NCCL_SOCKET_IFNAME=lo: lo is the loopback interface, by which no other host can be reached…"}},
		{"loopback, one host", doctor.Config{}, func(h *host) { h.env["NCCL_SOCKET_IFNAME"] = "lo" }, []string{"ok: NCCL_SOCKET_IFNAME=lo: NCCL uses 127.0.0.1"}},
		{"down", many, func(h *host) { add(h, "ib0", false, 2044); h.env["NCCL_SOCKET_IFNAME"] = "ib" }, []string{"failure: NCCL_SOCKET_IFNAME=ib: the interface is down → ip link set dev ib0 up, or set…"}},
		{"no address", many, func(h *host) { add(h, "ib0", true, 2044); h.env["NCCL_SOCKET_IFNAME"] = "=ib0" }, []string{"failure: NCCL_SOCKET_IFNAME==ib0: the interface has no address…"}},
		{"foreign --local-addr", doctor.Config{Backend: "etcd", MinNodes: 2, MaxNodes: 2, Members: []string{"b:1"}, LocalAddr: "10.0.0.7"}, func(*host) {}, []string{
			"failure: --local-addr=10.0.0.7 is not an address of this host (eth0 10.0.0.1) → name one of this host's, or leave the option out"}},
		{"none", many, func(h *host) { h.ifaces = h.ifaces[:1] }, []string{"failure: this host has no address but loopback ones…"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := healthy()
			tt.broken(h)
			same(t, h.found(t, tt.cfg, "interfaces"), tt.want)
		})
	}
}

// Source: NCCL's documentation of NCCL_SOCKET_IFNAME.
func TestMatching(t *testing.T) {
	var all []doctor.Interface
	for _, name := range []string{"lo", "eth0", "eth1", "eth10", "docker0"} {
		all = append(all, doctor.Interface{Name: name, Up: true, Loopback: name == "lo", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}})
	}
	for _, tt := range []struct{ env, text, want string }{
		{"NCCL_SOCKET_IFNAME", "eth", "eth0 eth1 eth10"},
		{"NCCL_SOCKET_IFNAME", "=eth1", "eth1"},
		{"NCCL_SOCKET_IFNAME", "^docker,lo", "eth0 eth1 eth10"},
		{"NCCL_SOCKET_IFNAME", "^=eth1", "eth0 eth10 docker0"},
		{"NCCL_SOCKET_IFNAME", "ib", ""},
		{"GLOO_SOCKET_IFNAME", "eth1", "eth1"},
		{"GLOO_SOCKET_IFNAME", "eth", ""},
		{"GLOO_SOCKET_IFNAME", "eth0,eth1", "eth0 eth1"},
	} {
		var got []string
		for _, i := range doctor.Matching(all, tt.env, tt.text) {
			got = append(got, i.Name)
		}
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("%s=%s: got %q, want %q", tt.env, tt.text, text, tt.want)
		}
	}
}

func TestLimits(t *testing.T) {
	for _, tt := range []struct {
		name   string
		broken func(h *host)
		want   []string
	}{
		{"well", func(*host) {}, []string{"ok: any number of files may be open"}},
		{"too few", func(h *host) {
			h.few = errors.Join(errors.New("the limit of files is 9"), errors.New("the limit of processes is 3"))
		}, []string{
			"failure: the limit of files is 9 → ulimit -n 65536…", "failure: the limit of processes is 3 → ulimit -n 65536…"}},
		{"few files", func(h *host) { h.limits[unix.RLIMIT_NOFILE] = 1024 }, []string{"warning: at most 1024 files may be open (ulimit -Hn): data loaders that share tensors run out of that…"}},
		{"control group", func(h *host) {
			h.files["proc/self/cgroup"] = &fstest.MapFile{Data: []byte("1:name=x:/\n0::/a/b\n")}
			h.files["sys/fs/cgroup/a/b/pids.max"] = &fstest.MapFile{Data: []byte("max\n")}
			h.files["sys/fs/cgroup/a/pids.max"] = &fstest.MapFile{Data: []byte("100\n")}
			h.files["sys/fs/cgroup/a/pids.current"] = &fstest.MapFile{Data: []byte("40\n")}
		}, []string{"ok: any…", "warning: the control group may have 60 more processes and threads (pids.max is 100), which is little for 1 worker with data loaders → raise it…"}},
		{"soft limit of workers", func(h *host) {
			h.run["/env/python3"] = strings.Replace(h.run["/env/python3"], "65536", "256", 1)
		}, []string{"ok: any number of files may be open", "warning: a worker may have 256 files open (ulimit -n) → ulimit -n 65536 before muster"}},
		{"locked memory", func(h *host) {
			h.files["sys/class/infiniband/mlx5_0/x"] = &fstest.MapFile{}
			h.limits[unix.RLIMIT_MEMLOCK] = 8 << 20
		}, []string{"ok: any…", "warning: 1 RDMA device, but only 8.0 MiB may be locked (ulimit -Hl): NCCL cannot register its memory (ibv_reg_mr fails)…"}},
		{"locked memory without limit", func(h *host) { h.files["sys/class/infiniband/mlx5_0/x"] = &fstest.MapFile{} }, []string{
			"ok: any…", "ok: 1 RDMA device; memory may be locked without limit"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := healthy()
			tt.broken(h)
			same(t, h.found(t, doctor.Config{}, "limits"), tt.want)
		})
	}
}

func TestHostChecks(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		name, check string
		cfg         doctor.Config
		broken      func(h *host)
		want        []string
	}{
		{"memory", "memory", doctor.Config{}, func(*host) {}, []string{"ok: 8.0 GiB of 16 GiB are free"}},
		{"memory in use", "memory", doctor.Config{}, func(h *host) {
			h.files["proc/meminfo"] = &fstest.MapFile{Data: []byte("MemTotal: 16777216 kB\nMemAvailable: 1048576 kB\n")}
		}, []string{"warning: 1.0 GiB of 16 GiB of memory are free: something else runs here…"}},
		{"container's memory", "memory", doctor.Config{}, func(h *host) {
			h.files["proc/self/cgroup"] = &fstest.MapFile{Data: []byte("0::/\n")}
			h.files["sys/fs/cgroup/memory.max"] = &fstest.MapFile{Data: []byte("4294967296\n")}
			h.files["sys/fs/cgroup/memory.current"] = &fstest.MapFile{Data: []byte("4294967296\n")}
			h.files["sys/fs/cgroup/memory.stat"] = &fstest.MapFile{Data: []byte("anon 1\ninactive_file 3221225472\n")}
		}, []string{"ok: 3.0 GiB of 4.0 GiB are free"}},
		{"shared memory", "shared memory", doctor.Config{}, func(*host) {}, []string{"ok: 50 GiB of 100 GiB are free"}},
		{"a container's", "shared memory", doctor.Config{}, func(h *host) { h.disk["/dev/shm"] = doctor.Disk{Size: 64 << 20, Free: 64 << 20} }, []string{
			"warning: 64 MiB of 64 MiB of /dev/shm are free: data loaders with several workers die of SIGBUS → docker run --shm-size=16g…"}},
		{"full shared memory", "shared memory", doctor.Config{}, func(h *host) { h.disk["/dev/shm"] = doctor.Disk{Size: 64 << 20, Free: 1 << 20} }, []string{
			"failure: 1.0 MiB of 64 MiB of /dev/shm are free: data loaders die of SIGBUS → remove what earlier jobs…"}},
		{"read-only shared memory", "shared memory", doctor.Config{}, func(h *host) { h.write["/dev/shm"] = syscall.EROFS }, []string{"failure: /dev/shm cannot be written to: read-only file system…"}},
		{"no shared memory", "shared memory", doctor.Config{}, func(h *host) { delete(h.files, "dev/shm") }, []string{"failure: /dev/shm is missing…"}},
		{"no log directory", "log directory", doctor.Config{LogDir: os.DevNull}, func(*host) {}, []string{"ok: none (--log-dir=/dev/null)"}},
		{"log directory to be made", "log directory", doctor.Config{LogDir: dir + "/x/y"}, func(*host) {}, []string{"ok: " + dir + "/x/y (to be made in " + dir + "): 50 GiB of 100 GiB are free"}},
		{"little space", "log directory", doctor.Config{LogDir: dir}, func(h *host) { h.disk[dir] = doctor.Disk{Size: gib, Free: gib / 2} }, []string{"warning: " + dir + ": 512 MiB of 1.0 GiB are free → make space there (df -h), or give another --log-dir"}},
		{"almost no space", "log directory", doctor.Config{LogDir: dir}, func(h *host) { h.disk[dir] = doctor.Disk{Size: gib, Free: 1 << 20} }, []string{"failure: " + dir + ": the disk is full (1.0 MiB of 1.0 GiB are free)…"}},
		{"quota", "log directory", doctor.Config{LogDir: dir}, func(h *host) { h.write[dir] = syscall.EDQUOT }, []string{"failure: " + dir + ": the disk is full (50 GiB of 100 GiB are free): disk quota exceeded…"}},
		{"another's", "log directory", doctor.Config{LogDir: dir}, func(h *host) { h.write[dir] = &fs.PathError{Op: "open", Path: dir, Err: syscall.EACCES} }, []string{"failure: " + dir + ": this user may not write there: permission denied → chown or chmod it, or give another --log-dir"}},
		{"no cgroup", "control groups", doctor.Config{}, func(h *host) { h.cgroup = syscall.EROFS }, []string{"warning: none can be made for the workers: read-only file system → muster then finds…"}},
		{"health check fails", "health check", doctor.Config{HealthCheck: "echo gpu 3 is gone; exit 4"}, func(*host) {}, []string{
			"failure: health check \"echo gpu 3 is gone; exit 4\": exit status 4; this host does not join the job; last lines of the check:\n    gpu 3 is gone → fix what…"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := healthy()
			tt.broken(h)
			same(t, h.found(t, tt.cfg, tt.check), tt.want)
		})
	}
}

func TestPython(t *testing.T) {
	gpus := func(h *host, n int) {
		for i := range n {
			h.files[fmt.Sprintf("proc/driver/nvidia/gpus/0000:%02x:00.0/information", i)] = &fstest.MapFile{Data: fmt.Appendf(nil, "Device Minor: \t %d\n", i)}
			h.files[fmt.Sprintf("dev/nvidia%d", i)] = &fstest.MapFile{}
		}
	}
	torch := func(h *host, text string) {
		h.run["/env/python3"] = `MUSTER {"version": "3.12.1", "executable": "/env/python3", "files": -1}` + "\nwarning of a library\nMUSTER " + text
	}
	const (
		cpu  = `{"torch": "2.15.0", "seconds": 2, "cuda": "", "distributed": true, "gloo": true, "mpi": true}`
		cuda = `{"torch": "2.15.0", "seconds": 2, "cuda": "13.2", "distributed": true, "gloo": true, "nccl": true, "devices": 2}`
	)
	for _, tt := range []struct {
		name, check string
		cfg         doctor.Config
		broken      func(h *host)
		want        []string
	}{
		{"version", "Python", doctor.Config{}, func(*host) {}, []string{"ok: 3.12.1 at /env/python3"}},
		{"none", "Python", doctor.Config{Python: doctor.Python{Err: errors.New("no Python interpreter")}}, func(*host) {}, []string{"failure: no Python interpreter → activate the environment that has torch, or set PYTHON_EXEC"}},
		{"broken", "Python", doctor.Config{}, func(h *host) { h.run["/env/python3"] = "!cannot find libpython" }, []string{"failure: /env/python3: exit status 1: cannot find libpython → set PYTHON_EXEC…"}},
		{"torch", "torch", doctor.Config{}, func(h *host) { torch(h, cpu) }, []string{"ok: 2.15.0 for CPUs only, imported in 2s; backends gloo, mpi"}},
		{"no torch", "torch", doctor.Config{}, func(h *host) {
			h.run["/env/python3"] = "!Traceback\nModuleNotFoundError: No module named 'torch'\n!MUSTER {\"version\": \"3.12.1\"}\n"
		}, []string{"failure: cannot be imported: it is not installed for /env/python3 → pip install torch…"}},
		{"broken torch", "torch", doctor.Config{}, func(h *host) {
			h.run["/env/python3"] = "!Traceback\nImportError: libcudart.so.13: cannot open shared object file\n!MUSTER {\"version\": \"3.12.1\"}\n"
		}, []string{"failure: cannot be imported: ImportError: libcudart.so.13: cannot open shared object file → pip install torch…"}},
		{"crashing torch", "torch", doctor.Config{}, func(h *host) { h.run["/env/python3"] = "!!MUSTER {\"version\": \"3.12.1\"}\n" }, []string{
			"failure: cannot be imported: the interpreter died while it imported it → run /env/python3 -X faulthandler -c 'import torch'"}},
		{"slow torch", "torch", doctor.Config{}, func(h *host) { torch(h, strings.Replace(cpu, "2,", "31.5,", 1)) }, []string{"warning: torch 2.15.0 took 31.5s to import → on many hosts copy…"}},
		{"without distributed", "torch", doctor.Config{}, func(h *host) { torch(h, `{"torch": "2.15.0"}`) }, []string{"failure: torch 2.15.0 was built without torch.distributed…"}},
		{"devices", "devices", doctor.Config{}, func(h *host) { gpus(h, 2); torch(h, cuda) }, []string{"ok: torch sees 2 GPUs"}},
		{"not adopted", "launcher", doctor.Config{}, func(h *host) { torch(h, cpu) }, []string{
			"ok: python -m torch.distributed.run, elastic_launch and torchrun of this environment start PyTorch's launcher; `muster adopt` changes that…"}},
		{"adopted", "launcher", doctor.Config{}, func(h *host) {
			torch(h, strings.Replace(cpu, `{"torch"`, `{"adopted": "/env/bin/muster", "torch"`, 1))
		}, []string{"ok: python -m torch.distributed.run, elastic_launch and torchrun of this environment start /env/bin/muster (adopted), but not python -S, subclasses of LocalElasticAgent and start_processes…"}},
		{"hidden devices", "devices", doctor.Config{}, func(h *host) {
			gpus(h, 4)
			torch(h, cuda)
			h.env["CUDA_VISIBLE_DEVICES"] = "0,1,2"
		}, []string{"warning: torch sees 2 GPUs of 3 (with CUDA_VISIBLE_DEVICES=0,1,2)"}},
		{"build for CPUs", "devices", doctor.Config{}, func(h *host) { gpus(h, 1); torch(h, cpu) }, []string{"warning: this host has 1 GPU, but torch 2.15.0 was built for CPUs only…"}},
		{"old driver", "devices", doctor.Config{}, func(h *host) { gpus(h, 2); torch(h, strings.Replace(cuda, `"devices": 2`, `"devices": 0`, 1)) }, []string{
			"failure: this host has 2 GPUs, but torch sees none → run /env/python3…"}},
		{"no py-spy", "py-spy", doctor.Config{}, func(*host) {}, []string{"warning: not found beside the interpreter or in PATH…"}},
		{"more workers than devices", "workers", doctor.Config{Workers: doctor.Workers{Count: 3}}, func(h *host) { gpus(h, 2) }, []string{"warning: 3 workers share 2 GPUs: NCCL refuses two ranks on one device → --nproc-per-node=gpu"}},
		{"no device to count", "GPUs", doctor.Config{Workers: doctor.Workers{Word: "gpu", Err: errors.New("Cuda is not available")}}, func(*host) {}, []string{"failure: --nproc-per-node=gpu: Cuda is not available…", "ok: no GPUs"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := healthy()
			tt.broken(h)
			same(t, h.found(t, tt.cfg, tt.check), tt.want)
		})
	}
}

// smi is one line of nvidia-smi's answer, as an H200 gives it, with some fields changed.
func smi(index int, change ...string) string {
	fields := []string{fmt.Sprint(index), "NVIDIA H200", "580.95.05", "Default", "0", "0", "No", "No", "[N/A]", "4", "143771", "29", "00000000:0A:00.0"}
	for i := 0; i < len(change); i += 2 {
		for k, name := range []string{"index", "name", "driver", "mode", "uncorrected", "corrected", "pending", "failure", "retired", "used", "total", "heat"} {
			if name == change[i] {
				fields[k] = change[i+1]
			}
		}
	}
	return strings.Join(fields, ", ") + "\n"
}

func TestGPUs(t *testing.T) {
	for _, tt := range []struct {
		name, answer, kernel string
		want                 []string
	}{
		{"well", smi(0) + smi(1), "usb 1-1: new device\n", []string{"ok: 2 x NVIDIA H200, driver 580.95.05"}},
		{"none", "No devices were found\n", "", []string{"ok: no GPUs"}},
		{"lost", "!Unable to determine the device handle for GPU0: GPU is lost.!", "", []string{"failure: nvidia-smi: exit status 1: Unable to determine the device handle for GPU0: GPU is lost. → load the driver…"}},
		{"damaged memory", smi(0) + smi(1, "uncorrected", "3"), "", []string{"ok: 2…", "failure: GPU 1: 3 uncorrected errors of memory (ECC) since the driver was loaded → take the host out…"}},
		{"worn memory", smi(0, "corrected", "1001", "pending", "Yes", "failure", "Yes"), "", []string{"ok: 1…",
			"warning: GPU 0: 1001 corrected errors of memory (ECC)…", "failure: GPU 0: a row of its memory could not be remapped → replace the GPU", "warning: GPU 0: damaged memory waits…"}},
		{"in use and hot", smi(0, "used", "70000", "heat", "91"), "", []string{"ok: 1…", "warning: GPU 0: 70000 of 143771 MiB are in use: something else runs on it…", "warning: GPU 0: 91 C…"}},
		{"mixed", smi(0) + smi(1, "name", "NVIDIA H100"), "", []string{
			"ok: 1 x NVIDIA H200, 1 x NVIDIA H100, driver 580.95.05"}},
		{"prohibited", smi(0, "mode", "Prohibited"), "", []string{"ok: 1…", "failure: GPU 0: its compute mode is Prohibited → nvidia-smi -c DEFAULT -i 0"}},
		{"Xid", smi(0), "[1.2] NVRM: Xid (PCI:0000:0a:00): 79, pid=1, GPU has fallen off the bus.\nNVRM: Xid (PCI:0000:0a:00): 31, x\nNVRM: Xid (PCI:0000:0a:00): 31, x\nNVRM: Xid (PCI:zz", []string{"ok: 1…",
			"failure: the kernel reports Xid 79 (it has fallen off the bus) of the GPU at 0000:0a:00 → take the host out…", "warning: the kernel reports Xid 31 of the GPU at 0000:0a:00 → 13, 31 and 43…"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := healthy()
			h.run["nvidia-smi"], h.kernel = tt.answer, tt.kernel
			same(t, h.found(t, doctor.Config{}, "GPUs"), tt.want)
		})
	}
}

func TestPort(t *testing.T) {
	t.Parallel()
	yes := true
	cfg := doctor.Config{Backend: "c10d", MinNodes: 1, MaxNodes: 1, Host: "a", Port: 1} // nobody listens at port 1
	cfg.Settings.IsHost = &yes
	for _, tt := range []struct {
		name   string
		broken func(h *host)
		want   string
	}{
		{"free", func(*host) {}, "ok: 1 is free on this host, where the hosts will meet"},
		{"reserved", func(h *host) { h.bind = syscall.EACCES }, "failure: 1: this user may not listen there: permission denied → ports below 1024 are root's; choose another port…"},
		{"no such address", func(h *host) { h.bind = syscall.EADDRNOTAVAIL }, "failure: cannot listen at :1: cannot assign requested address…"},
		{"taken by one that is seen", func(h *host) {
			h.bind = syscall.EADDRINUSE
			h.files["proc/self/net/tcp6"] = &fstest.MapFile{Data: []byte("  sl  local_address …\n   0: 00000000000000000000000000000000:0001 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0\n")}
			h.files["proc/77/comm"] = &fstest.MapFile{Data: []byte("jupyter\n")}
			h.files["proc/77/fd/3"] = &fstest.MapFile{Data: []byte("socket:[4711]"), Mode: fs.ModeSymlink}
			h.files["proc/78/fd/3"] = &fstest.MapFile{Data: []byte("socket:[4712]"), Mode: fs.ModeSymlink}
		}, "failure: 1 is in use on this host, the endpoint, by process 77 (jupyter): …"},
		{"taken by another's", func(h *host) {
			h.bind = syscall.EADDRINUSE
			h.files["proc/self/net/tcp"] = &fstest.MapFile{Data: []byte("   0: 0100007F:0001 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 99 1\n")}
		}, "failure: 1 is in use on this host, the endpoint, by a process of another user or container: …"},
		{"taken while others are connected", func(h *host) {
			h.bind = syscall.EADDRINUSE
			const rest = " 00000000:00000000 00:00000000 00000000     0        0 99 1\n"
			h.files["proc/self/net/tcp"] = &fstest.MapFile{Data: []byte("   0: 0100007F:0001 0100007F:0002 01" + rest + "   1: 0100007F:0002 0100007F:0001 0A" + rest + "   2: 0100007F:0001 00000000:0000 0A\n")}
		}, "failure: 1 is in use on this host, the endpoint, by an unknown process: …"},
		{"taken by nobody knows", func(h *host) { h.bind = syscall.EADDRINUSE }, "failure: 1 is in use on this host, the endpoint, by an unknown process: …"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := healthy()
			tt.broken(h)
			same(t, h.found(t, cfg, "port"), []string{tt.want})
		})
	}
}

// What a check says of its own end is not what is wrong with the host.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	s := healthy().system()
	s.Run = func(ctx context.Context, _ string, _ ...string) ([]byte, []byte, error) {
		interrupt()
		return nil, nil, context.Cause(ctx)
	}
	cfg := doctor.Config{System: s, MinNodes: 1, MaxNodes: 1, Python: doctor.Python{Path: "/env/python3"}}
	var got []string
	for _, l := range doctor.Run(ctx, cfg).Lines {
		if l.Check == "Python" {
			got = append(got, string(l.Status)+": "+l.Text+l.Advice)
		}
	}
	same(t, got, []string{"failure: interrupted"})
}
