//go:build linux

package slurmlab

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/netlab"
)

// patience bounds every wait for Slurm. Nothing is expected to take this long.
const patience = 3 * time.Minute

// A Config says what a lab has otherwise than by default.
type Config struct {
	Nodes    int           // default 2
	CPUs     int           // that each node claims to have. Default 4
	GPUs     int           // the same; Slurm hands out numbers, no device is needed
	KillWait time.Duration // between SIGTERM and SIGKILL, whole seconds. Default 30s
	Extra    string        // more lines of slurm.conf
}

// A Lab is a running Slurm. Its methods belong to the test's goroutine.
type Lab struct {
	Net     *netlab.Lab
	t       testing.TB
	dir     string
	group   string // of its daemons; "" where there are none of version 1
	path    func(string) string
	ends    chan End
	early   []End // that nobody has awaited yet
	daemons []*daemon
}

// An End is what Slurm has noted of a job that is over, or over for now: a job that
// is requeued ends each time.
type End struct {
	Job          int
	State        string // COMPLETED, FAILED, CANCELLED, TIMEOUT; PENDING if it was requeued
	Code, Signal int    // of the batch script
}

// New starts a Slurm that ends with the test.
func New(t testing.TB, cfg Config) *Lab {
	t.Helper()
	if cfg.Nodes == 0 {
		cfg.Nodes = 2
	}
	if cfg.CPUs == 0 {
		cfg.CPUs = 4
	}
	if cfg.KillWait == 0 {
		cfg.KillWait = 30 * time.Second
	}
	l := &Lab{t: t, path: need(t), ends: make(chan End, 100)}
	l.Net = netlab.New(t, cfg.Nodes)
	// Not t.TempDir: the test's name would make the sockets' paths too long.
	dir, err := os.MkdirTemp("", "slurm")
	if err != nil {
		t.Fatal(err)
	}
	l.dir = dir
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Cleanup(l.stop)
	if err := l.configure(cfg); err != nil {
		t.Fatalf("slurmlab: %v", err)
	}
	host := l.Net.Host(0)
	l.start("munged", exec.Command(l.path("munged"), "--foreground", "--force", "--key-file="+l.file("munge.key"), "--socket="+l.file("munge.sock"),
		"--pid-file="+l.file("munged.pid"), "--log-file="+l.file("munged.log"), "--seed-file="+l.file("munged.seed"), "--num-threads=1"), host, "Created 1 work thread")
	l.start("slurmctld", exec.Command(l.path("slurmctld"), "-D", "-i"), host, "Running as primary controller")
	for _, h := range l.Net.Hosts() {
		l.start("slurmd", l.slurmd(h), h, "slurmd started")
	}
	return l
}

// slurmd is the command of a node's daemon.
func (l *Lab) slurmd(h *netlab.Host) *exec.Cmd {
	argv := []string{l.path("slurmd"), "-D", "-N", h.Name}
	if l.group == "" {
		return exec.Command(argv[0], argv[1:]...)
	}
	dir := filepath.Join(l.group, h.Name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		l.t.Fatal(err)
	}
	return exec.Command("sh", append([]string{"-c", enterGroup(dir), "sh"}, argv...)...)
}

func (l *Lab) file(name string) string { return filepath.Join(l.dir, name) }

// env is what every program of Slurm is told.
func (l *Lab) env() []string {
	return append(cleanEnv(), "SLURM_CONF="+l.file("slurm.conf"))
}

// cleanEnv is the test's environment without what a Slurm around the test has put
// there.
func cleanEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "SLURM") && !strings.HasPrefix(kv, "SBATCH") && !strings.HasPrefix(kv, "SRUN") {
			env = append(env, kv)
		}
	}
	return env
}

// configure writes what the daemons read.
func (l *Lab) configure(cfg Config) error {
	key := make([]byte, 64)
	rand.Read(key)
	names := make([]string, cfg.Nodes)
	for i, h := range l.Net.Hosts() {
		names[i] = h.Name
	}
	proctrack := "linuxproc"
	if l.group = newGroup(); l.group != "" {
		proctrack = "cgroup"
	}
	gpus := ""
	var gres strings.Builder // a file for every GPU, since Slurm wants to see one
	for i := range cfg.GPUs {
		if err := os.WriteFile(l.file(fmt.Sprintf("gpu%d", i)), nil, 0o644); err != nil {
			return err
		}
		fmt.Fprintf(&gres, "Name=gpu File=%s/gpu%d\n", l.dir, i)
		gpus = fmt.Sprintf(" Gres=gpu:%d", cfg.GPUs)
	}
	nodes := "host0"
	if cfg.Nodes > 1 {
		nodes = fmt.Sprintf("host[0-%d]", cfg.Nodes-1)
	}
	// A job that is requeued waits until its credentials have expired. Where that is too
	// soon for a busy machine a job does not start.
	conf := fmt.Sprintf(`ClusterName=lab
SlurmctldHost=host0
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=%[1]s/munge.sock,cred_expire=15
CredType=cred/munge
StateSaveLocation=%[1]s/state
SlurmdSpoolDir=%[1]s/spool-%%n
SlurmctldPidFile=%[1]s/slurmctld.pid
SlurmdPidFile=%[1]s/%%n.pid
SlurmctldPort=6817
SlurmdPort=6818
ProctrackType=proctrack/%[7]s
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
KillWait=%[2]d
ReturnToService=2
JobRequeue=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/script
JobCompLoc=%[1]s/ended
GresTypes=gpu
NodeName=%[3]s CPUs=%[4]d State=UNKNOWN%[5]s
PartitionName=lab Nodes=%[3]s Default=YES MaxTime=INFINITE State=UP OverTimeLimit=0
%[6]s
`, l.dir, int(cfg.KillWait/time.Second), nodes, cfg.CPUs, gpus, cfg.Extra, proctrack)
	ended := fmt.Sprintf("#!/bin/sh\necho \"$JOBID $JOBSTATE $EXITCODE\" >>%s/ends\n", l.dir)
	for _, f := range []struct {
		name, text string
		mode       os.FileMode
	}{
		{"munge.key", string(key), 0o400},
		{"slurm.conf", conf, 0o644},
		{"gres.conf", gres.String(), 0o644},
		{"cgroup.conf", "CgroupPlugin=cgroup/v1\n", 0o644},
		{"ended", ended, 0o755},
	} {
		if err := os.WriteFile(l.file(f.name), []byte(f.text), f.mode); err != nil {
			return err
		}
	}
	if err := os.Chmod(l.dir, 0o711); err != nil { // munged's clients pass through
		return err
	}
	if err := os.Mkdir(l.file("state"), 0o755); err != nil {
		return err
	}
	for _, name := range names {
		if err := os.Mkdir(l.file("spool-"+name), 0o755); err != nil {
			return err
		}
	}
	return l.listen()
}

// listen reads the ends of jobs from a named pipe.
func (l *Lab) listen() error {
	if err := unix.Mkfifo(l.file("ends"), 0o600); err != nil {
		return err
	}
	f, err := os.OpenFile(l.file("ends"), os.O_RDWR|unix.O_NONBLOCK, 0) // both, or it would end between jobs
	if err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := bufio.NewScanner(f); s.Scan(); {
			fields := append(strings.Fields(s.Text()), "", "", "")
			end := End{State: fields[1]}
			end.Job, _ = strconv.Atoi(fields[0])
			code, signal, _ := strings.Cut(fields[2], ":")
			end.Code, _ = strconv.Atoi(code)
			end.Signal, _ = strconv.Atoi(signal)
			l.ends <- end
		}
	}()
	l.t.Cleanup(func() { f.Close(); <-done })
	return nil
}

// A daemon is a program that runs until the lab ends.
type daemon struct {
	name  string
	cmd   *exec.Cmd
	ended chan struct{}
	mu    sync.Mutex // guards said
	said  bytes.Buffer
}

func (d *daemon) output() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.said.String()
}

// start starts a daemon on a host and waits until it has said what it says when it
// is ready.
func (l *Lab) start(name string, cmd *exec.Cmd, host *netlab.Host, ready string) {
	l.t.Helper()
	d := &daemon{name: name, cmd: cmd, ended: make(chan struct{})}
	out, in, err := os.Pipe()
	if err != nil {
		l.t.Fatal(err)
	}
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.Dir = l.env(), in, in, l.dir
	err = host.Start(cmd)
	in.Close()
	if err != nil {
		out.Close()
		l.t.Fatalf("slurmlab: start %s: %v", name, err)
	}
	l.daemons = append(l.daemons, d)
	isReady := make(chan struct{})
	go func() {
		defer close(d.ended)
		defer out.Close()
		told := false
		for s := bufio.NewScanner(out); s.Scan(); {
			d.mu.Lock()
			d.said.Write(append(s.Bytes(), '\n'))
			d.mu.Unlock()
			if !told && strings.Contains(s.Text(), ready) {
				close(isReady)
				told = true
			}
		}
		cmd.Wait()
	}()
	select {
	case <-isReady:
	case <-d.ended:
		l.t.Fatalf("slurmlab: %s ended:\n%s", name, d.output())
	case <-time.After(patience):
		l.t.Fatalf("slurmlab: %s is not ready after %v:\n%s", name, patience, d.output())
	}
}

// stop ends the hosts, and with them the daemons and whatever Slurm has started.
func (l *Lab) stop() {
	for _, h := range l.Net.Hosts() {
		if len(h.Processes()) > 0 {
			h.Kill()
		}
	}
	for _, d := range l.daemons {
		<-d.ended
		if l.t.Failed() {
			l.t.Logf("%s said:\n%s", d.name, d.output())
		}
	}
	if l.group != "" {
		if err := removeGroup(l.group); err != nil {
			l.t.Errorf("slurmlab: remove %s: %v", l.group, err)
		}
	}
}

// Run runs a command of Slurm on the first host, with more in its environment, and
// returns what it has written, to stdout and stderr. It is killed after a while.
func (l *Lab) Run(env []string, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := l.Net.Host(0).Command(ctx, l.path(name), args...)
	cmd.Env = append(l.env(), env...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Submit submits a batch script and returns the job's number.
func (l *Lab) Submit(env []string, args ...string) int {
	l.t.Helper()
	out, err := l.Run(env, "sbatch", append([]string{"--parsable"}, args...)...)
	if err != nil {
		l.t.Fatalf("slurmlab: sbatch %q: %v\n%s", args, err, out)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	job, err := strconv.Atoi(lines[len(lines)-1])
	if err != nil {
		l.t.Fatalf("slurmlab: sbatch %q said %s", args, out)
	}
	return job
}

// AwaitEnd waits for the next end of a job. A job that is cancelled has ended when
// that is decided, even if its processes still save their work.
func (l *Lab) AwaitEnd(job int) End {
	l.t.Helper()
	for i, end := range l.early {
		if end.Job == job {
			l.early = slices.Delete(l.early, i, i+1)
			return end
		}
	}
	timer := time.After(2 * patience)
	for {
		select {
		case end := <-l.ends:
			if end.Job == job {
				return end
			}
			l.early = append(l.early, end)
		case <-timer:
			out, _ := l.Run(nil, "scontrol", "show", "job")
			l.t.Fatalf("slurmlab: job %d has not ended after %v:\n%s", job, 2*patience, out)
		}
	}
}
