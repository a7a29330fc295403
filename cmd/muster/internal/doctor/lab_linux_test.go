package doctor_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/cmd/muster/internal/doctor"
	"github.com/muster-run/muster/internal/test/netlab"
	"github.com/muster-run/muster/internal/test/testproc"
)

// A site is a lab whose hosts have a Python that has torch.
type site struct {
	t   *testing.T
	lab *netlab.Lab
	dir string
	env []string
}

func newSite(t *testing.T, hosts int) *site {
	t.Parallel()
	s := &site{t: t, lab: netlab.New(t, hosts), dir: t.TempDir()}
	s.program("python3", "#!/bin/sh\n"+
		`echo 'MUSTER {"version": "3.12.1", "executable": "", "files": 65536}'`+"\n"+
		`echo 'MUSTER {"torch": "2.15.0", "seconds": 1.5, "cuda": "", "hip": "", "distributed": true, "gloo": true}'`+"\n")
	s.program("py-spy", "#!/bin/sh\n")
	s.env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "PYTHON_EXEC=" + s.dir + "/python3", "TMPDIR=" + s.dir, "HOME=" + s.dir}
	return s
}

func (s *site) program(name, text string) {
	s.t.Helper()
	if err := testproc.WriteProgram(filepath.Join(s.dir, name), text); err != nil {
		s.t.Fatal(err)
	}
}

// sh runs a script on a host.
func (s *site) sh(host int, script string) {
	s.t.Helper()
	cmd := s.lab.Host(host).Command(context.Background(), "sh", "-ec", script)
	cmd.Env = s.env
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("host%d: %s: %v\n%s", host, script, err, out)
	}
}

// self is the test binary, which prlimit and others start.
func self(t *testing.T) string {
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A visit is a doctor on a host.
type visit struct {
	s           *site
	cmd         *netlab.Cmd
	out, stderr bytes.Buffer
}

// start starts a program on a host; words before it may be of another that starts it.
func (s *site) start(host int, env []string, words ...string) *visit {
	s.t.Helper()
	v := &visit{s: s, cmd: s.lab.Host(host).Command(context.Background(), words[0], words[1:]...)}
	v.cmd.Env = append(append([]string{}, s.env...), env...)
	v.cmd.Stdout, v.cmd.Stderr = &v.out, &v.stderr
	if err := v.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	return v
}

// doctor starts `muster doctor`.
func (s *site) doctor(host int, env []string, args ...string) *visit {
	return s.start(host, env, append([]string{self(s.t), "muster", "doctor", "--json"}, args...)...)
}

// report waits for a doctor and returns what it has found.
func (v *visit) report() doctor.Report {
	v.s.t.Helper()
	err := v.cmd.Wait()
	var r doctor.Report
	if bad := json.Unmarshal(v.out.Bytes(), &r); bad != nil {
		v.s.t.Fatalf("%v, %v: stdout %q, stderr %q", err, bad, v.out.String(), v.stderr.String())
	}
	status := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status = exit.ExitCode()
	}
	want := 0
	if r.Status == doctor.Failure {
		want = 1
	}
	if status != want && len(v.cmd.Args) > 1 && v.cmd.Args[1] == "muster" {
		v.s.t.Errorf("exit status %d for a report whose status is %s", status, r.Status)
	}
	return r
}

// expect fails the test unless the report has a line of that status, check and text, a
// regular expression, with advice that matches another.
func expect(t *testing.T, r doctor.Report, status doctor.Status, check, text, advice string) {
	t.Helper()
	if !has(r, status, check, text, advice) {
		t.Errorf("%s: no %s of %s like %q, %q in\n%s", r.Host, status, check, text, advice, show(r))
	}
}

func has(r doctor.Report, status doctor.Status, check, text, advice string) bool {
	for _, l := range r.Lines {
		if l.Status == status && l.Check == check && regexp.MustCompile(text).MatchString(l.Text) && regexp.MustCompile(advice).MatchString(l.Advice) {
			return true
		}
	}
	return false
}

// expectOnly fails the test if the report has failures of other checks.
func expectOnly(t *testing.T, r doctor.Report, checks ...string) {
	t.Helper()
	for _, l := range r.Lines {
		if l.Status == doctor.Failure && !strings.Contains(" "+strings.Join(checks, " ")+" ", " "+l.Check+" ") {
			t.Errorf("%s: unexpected failure in\n%s", r.Host, show(r))
			return
		}
	}
}

// both runs doctor on two hosts, with different environments.
func (s *site) both(env0, env1 []string, args ...string) (r0, r1 doctor.Report) {
	s.t.Helper()
	v0, v1 := s.doctor(0, env0, args...), s.doctor(1, env1, args...)
	return v0.report(), v1.report()
}

func TestHealthyHosts(t *testing.T) {
	s := newSite(t, 3)
	var visits []*visit
	for i := range s.lab.Hosts() {
		visits = append(visits, s.doctor(i, nil, "--nnodes=3", "--rdzv-endpoint=host0:29400", "--health-check", "true"))
	}
	for i, v := range visits {
		r := v.report()
		expectOnly(t, r)
		expect(t, r, doctor.OK, "meeting", `^3 hosts met at host0:29400: host\d \([0-9a-f.:]+\), `, "")
		if r.Status == doctor.OK { // on a busy machine the round trip is long
			expect(t, r, doctor.OK, "connections", "^all hosts reach each other in both directions; the longest round trip is ", "")
		}
		expect(t, r, doctor.OK, "MTU", "^1 MiB passes", "")
		expect(t, r, doctor.OK, "clocks", "clocks are at most .*s apart$", "")
		expect(t, r, doctor.OK, "torch", "^2.15.0 for CPUs only, imported in 1.5s; backends gloo$", "")
		expect(t, r, doctor.OK, "names", fmt.Sprintf("^host%d is ", i), "")
		expect(t, r, doctor.OK, "health check", "^true: passed", "")
		if i == 0 {
			expect(t, r, doctor.OK, "port", "^29400 is free on this host", "")
		} else {
			expect(t, r, doctor.OK, "endpoint", "^host0:29400 can be reached .*a muster store or agent answers$", "")
		}
	}
}

func TestNoDNS(t *testing.T) {
	s := newSite(t, 2)
	// Only its own machine room has forgotten host1; the name server is gone.
	s.lab.Host(0).Cut(s.lab.Host(1))
	s.sh(1, `printf '127.0.0.1 localhost\n' >$TMPDIR/hosts; mount --bind $TMPDIR/hosts /etc/hosts
		printf 'nameserver `+s.lab.Host(0).Addr+`\noptions timeout:1 attempts:1\n' >$TMPDIR/resolv.conf; mount --bind $TMPDIR/resolv.conf /etc/resolv.conf`)
	r := s.doctor(1, nil, "--nnodes=2", "--rdzv-endpoint=host0:29400", "--wait=2").report()
	expect(t, r, doctor.Failure, "names", `^this host's own name host1 cannot be resolved: no name server answers \(waited `, `/etc/hosts \(10.77.0.12 host1\)`)
	expect(t, r, doctor.Failure, "names", `^the endpoint's name host0 cannot be resolved: no name server answers`, "name servers in /etc/resolv.conf")
	expect(t, r, doctor.Failure, "endpoint", `^host0:29400 cannot be reached: its name cannot be resolved`, "line about names")

	r = s.doctor(0, nil, "--nnodes=2", "--rdzv-endpoint=nowhere.invalid:29400", "--wait=2").report()
	expect(t, r, doctor.Failure, "names", `^the endpoint's name nowhere.invalid cannot be resolved: `, "spelling")
}

// A loopback address for a host's own name is what Debian's installer writes.
func TestLoopbackName(t *testing.T) {
	s := newSite(t, 1)
	s.sh(0, `printf '127.0.0.1 localhost\n127.0.1.1 host0\n' >$TMPDIR/hosts; mount --bind $TMPDIR/hosts /etc/hosts`)
	r := s.doctor(0, nil, "--nnodes=2", "--rdzv-endpoint=10.77.0.11:29400", "--wait=1").report()
	expect(t, r, doctor.Failure, "names", "^this host's own name host0 is 127.0.1.1, a loopback address", "GLOO_SOCKET_IFNAME=eth0$")
	expect(t, r, doctor.Failure, "meeting", "did not meet at 10.77.0.11:29400 within 1s|1 of 2 hosts came to 10.77.0.11:29400", "on every host")
}

// drop makes a host lose frames that come to it.
func (s *site) drop(host int, filter []unix.SockFilter) {
	s.t.Helper()
	program := fmt.Sprint(len(filter))
	for _, i := range filter {
		program += fmt.Sprintf(",%d %d %d %d", i.Code, i.Jt, i.Jf, i.K)
	}
	s.sh(host, fmt.Sprintf(`tc qdisc add dev eth0 clsact; tc filter add dev eth0 ingress protocol all bpf da bytecode "%s"`, program))
}

const (
	pass = 0 // TC_ACT_OK
	shot = 2 // TC_ACT_SHOT
	load = unix.BPF_LD | unix.BPF_ABS
)

// newConnections matches TCP packets that open connections, as a stateful firewall
// does which lets only answers in.
var newConnections = []unix.SockFilter{
	{Code: load | unix.BPF_H, K: 12},
	{Code: unix.BPF_JMP | unix.BPF_JEQ, K: unix.ETH_P_IP, Jf: 5},
	{Code: load | unix.BPF_B, K: 14 + 9},
	{Code: unix.BPF_JMP | unix.BPF_JEQ, K: unix.IPPROTO_TCP, Jf: 9},
	{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: 14},
	{Code: unix.BPF_LD | unix.BPF_IND | unix.BPF_B, K: 14 + 13},
	{Code: unix.BPF_JMP | unix.BPF_JA, K: 4},
	{Code: unix.BPF_JMP | unix.BPF_JEQ, K: unix.ETH_P_IPV6, Jf: 5},
	{Code: load | unix.BPF_B, K: 14 + 6},
	{Code: unix.BPF_JMP | unix.BPF_JEQ, K: unix.IPPROTO_TCP, Jf: 3},
	{Code: load | unix.BPF_B, K: 14 + 40 + 13},
	{Code: unix.BPF_ALU | unix.BPF_AND, K: 0x12}, // SYN and ACK
	{Code: unix.BPF_JMP | unix.BPF_JEQ, K: 0x02, Jt: 1},
	{Code: unix.BPF_RET, K: pass},
	{Code: unix.BPF_RET, K: shot},
}

// longer matches packets of more than n bytes.
func longer(n uint32) []unix.SockFilter {
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_LEN},
		{Code: unix.BPF_JMP | unix.BPF_JGT, K: 14 + n, Jt: 1},
		{Code: unix.BPF_RET, K: pass},
		{Code: unix.BPF_RET, K: shot},
	}
}

func TestOneWayFirewall(t *testing.T) {
	s := newSite(t, 2)
	s.drop(1, newConnections)
	r0, r1 := s.both(nil, nil, "--nnodes=2", "--rdzv-endpoint=10.77.0.11:29400")
	for _, r := range []doctor.Report{r0, r1} {
		expect(t, r, doctor.Failure, "connections",
			`^host1 reaches host0, but host0 cannot reach host1 at 10.77.0.12: no answer \(packets vanish.*one direction`, "^let TCP from host0 to host1 through")
		expectOnly(t, r, "connections")
	}
}

// The endpoint itself may be behind the firewall.
func TestFirewalledEndpoint(t *testing.T) {
	s := newSite(t, 2)
	s.drop(0, newConnections)
	r0, r1 := s.both(nil, nil, "--nnodes=2", "--rdzv-endpoint=10.77.0.11:29400", "--wait=4")
	expect(t, r0, doctor.Failure, "meeting", `^1 of 2 hosts came to 10.77.0.11:29400 \(host0\) within 4s`, "says what is in the way")
	expect(t, r1, doctor.Failure, "endpoint", `^10.77.0.11:29400: no answer \(packets vanish`, "^let TCP from this host to port 29400")
}

func TestWrongInterface(t *testing.T) {
	s := newSite(t, 2)
	s.sh(1, `ip link add bad0 type veth peer name bad1; ip addr add 10.88.0.1/24 dev bad0; ip link set bad0 up; ip link set bad1 up`)
	r0, r1 := s.both(nil, []string{"GLOO_SOCKET_IFNAME=bad0"}, "--nnodes=2", "--rdzv-endpoint=10.77.0.11:29400")
	for _, r := range []doctor.Report{r0, r1} {
		expect(t, r, doctor.Failure, "interfaces", `^host0 cannot reach host1 at 10.88.0.1 \(GLOO_SOCKET_IFNAME=bad0\): unreachable.*wrong interface`,
			`^on host1, set GLOO_SOCKET_IFNAME .*\(eth0, which has 10.77.0.12\)$`)
		expectOnly(t, r, "interfaces")
	}
	r := s.doctor(0, []string{"NCCL_SOCKET_IFNAME==ib0", "GLOO_SOCKET_IFNAME=lo"}, "--nnodes=2", "--rdzv-endpoint=10.77.0.11:29400", "--wait=1").report()
	expect(t, r, doctor.Failure, "interfaces", "^NCCL_SOCKET_IFNAME==ib0: there is no such interface; this host has eth0 10.77.0.11, fd77::11", "NCCL_SOCKET_IFNAME=eth0")
	expect(t, r, doctor.Failure, "interfaces", "^GLOO_SOCKET_IFNAME=lo: lo is the loopback interface", "GLOO_SOCKET_IFNAME=eth0")
}

func TestClockApart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		ahead  string
		status doctor.Status
		text   string
	}{
		{"1m", doctor.Failure, "^the clock of host[01] is (1m0s|59.[0-9]s) (ahead of|behind) that of host[01]: keep-alives of torch's agents look dead"},
		{"-2s", doctor.Warning, "^the clock of host[01] is (2s|1.[5-9]s) (ahead of|behind) that of host[01]$"},
	} {
		t.Run(tt.ahead, func(t *testing.T) {
			s := newSite(t, 2)
			v0 := s.doctor(0, nil, "--nnodes=2", "--rdzv-endpoint=10.77.0.11:29400")
			v1 := s.start(1, nil, self(s.t), "guest", "shifted", "10.77.0.11", tt.ahead)
			for _, r := range []doctor.Report{v0.report(), v1.report()} {
				expect(t, r, tt.status, "clocks", tt.text, "chronyc")
				expectOnly(t, r, "clocks")
			}
		})
	}
}

func TestFullDisk(t *testing.T) {
	s := newSite(t, 1)
	s.sh(0, `mkdir $TMPDIR/full $TMPDIR/ro; mount -t tmpfs -o size=128k tmpfs $TMPDIR/full; ! head -c 1M /dev/zero 2>/dev/null >$TMPDIR/full/log
		mount -t tmpfs -o ro tmpfs $TMPDIR/ro`)
	r := s.doctor(0, nil, "--log-dir", s.dir+"/full/job7").report()
	expect(t, r, doctor.Failure, "log directory", `/full/job7 \(to be made in .*/full\): the disk is full \(0 B of 128 KiB are free\): no space left on device`, "give another --log-dir")
	expectOnly(t, r, "log directory")

	r = s.doctor(0, []string{"TMPDIR=" + s.dir + "/ro"}, "--log-dir", s.dir).report()
	expect(t, r, doctor.Failure, "temporary files", `/ro: the file system is read-only$`, "set TMPDIR")
}

func TestLowLimits(t *testing.T) {
	s := newSite(t, 1)
	prlimit, err := exec.LookPath("prlimit")
	if err != nil {
		t.Skipf("needs util-linux: %v", err)
	}
	r := s.start(0, nil, prlimit, "--nofile=100:100", self(t), "muster", "doctor", "--json", "--nproc-per-node=8").report()
	expect(t, r, doctor.Failure, "limits", `^the limit of open files \(ulimit -n\) is 100, but 8 workers need 160`, "ulimit -n 65536")
	expectOnly(t, r, "limits")
}

func TestBusyPort(t *testing.T) {
	s := newSite(t, 2)
	cmd := s.lab.Host(0).Command(context.Background(), self(s.t), "guest", "hold", ":29400")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); io.Copy(io.Discard, out); cmd.Wait() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "listening\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	r0, r1 := s.both(nil, nil, "--nnodes=2", "--rdzv-endpoint=10.77.0.11:29400", "--wait=2")
	expect(t, r0, doctor.Failure, "port", `^29400 is in use on this host, the endpoint, by process \d+ \(\S+\): a web server answers \(HTTP\), which is not a TCPStore$`, `^end it, or choose another port .*10.77.0.11:29401$`)
	expect(t, r1, doctor.Failure, "endpoint", `^10.77.0.11:29400 .*a web server answers`, "another program has the port")
}

func TestTinyMTU(t *testing.T) {
	t.Parallel()
	t.Run("packets vanish", func(t *testing.T) {
		s := newSite(t, 2)
		s.drop(1, longer(600))
		r0, r1 := s.both(nil, nil, "--nnodes=2", "--rdzv-endpoint=10.77.0.11:29400")
		for _, r := range []doctor.Report{r0, r1} {
			expect(t, r, doctor.Failure, "MTU", `^packets from host0 to host1 \(10.77.0.12\) of more than 576 bytes vanish on the way, but eth0 has the MTU 1500: a connection is made, and then hangs$`, "mtu 576")
			expectOnly(t, r, "MTU")
		}
	})
	t.Run("of the interface", func(t *testing.T) {
		s := newSite(t, 2)
		s.sh(1, "ip link set dev eth0 mtu 600")
		r0, _ := s.both(nil, nil, "--nnodes=2", "--rdzv-endpoint=10.77.0.11:29400")
		expect(t, r0, doctor.Warning, "MTU", "^the hosts have different MTUs: 600 on host1; 1500 on host0$", "the same")
	})
}
