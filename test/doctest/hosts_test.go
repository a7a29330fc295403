//go:build linux

package doctest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/pypeer"
	"github.com/muster-run/muster/internal/test/slurmlab"
	"github.com/muster-run/muster/internal/test/testproc"
)

func readme(p *play) {
	p.run("bin/muster run --nproc-per-node 8 --max-restarts 3 --tee 3 --log-dir logs train.py --epochs 90").exits(0)
	p.run("muster run train.py").exits(0).says(1, "^rank 0 of 1: training $")
	p.job(0, "bin/muster run --nnodes 2:4 --nproc-per-node 8 --max-restarts 3 \\\n"+
		"    --rdzv-backend c10d --rdzv-endpoint host0:29400 --rdzv-id job7 train.py")
	p.rendezvous("muster store --host 0.0.0.0 --port 29400", "bin/muster run --nnodes 2:4 --nproc-per-node 2 --max-restarts 3")
}

func manyHosts(p *play) {
	p.job(0, "muster run --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint host0:29400 --rdzv-id job7 train.py")
	const run = "muster run --nnodes 4 --nproc-per-node 2"
	p.rendezvous("muster store --host 0.0.0.0 --port 29400", run)
	p.put(run, p.form("--rdzv-backend static --master-addr host0 --master-port 29500 --node-rank N", "N", "%d"))
	p.each(0, "muster doctor --nnodes 4 --rdzv-backend c10d --rdzv-endpoint host0:29400 --rdzv-id job7", p.torch()).says(1, "4 hosts met at host0:29400")
}

// kubernetes runs the command of a pod on hosts that have no pods' names.
func kubernetes(p *play) {
	c := p.command("muster run --nnodes 2:8 --rdzv-backend c10d --rdzv-endpoint job7-0.job7:29400 --rdzv-id job7 \\\n" +
		"    --preemption-signals SIGTERM,SIGUSR1 --max-restarts 3 train.py")
	line := strings.Replace(c.Line, "job7-0.job7", "host0", 1)
	p.run("muster run train.py").exits(0).says(1, "^rank 0 of 1: training $")
	p.run("muster explain train.py").exits(0).says(1, "train.py")
	for _, r := range []*run{p.do(0, line), p.do(1, line)} {
		r.exits(0).says(1, "^rank [01] of 2: training $")
	}
}

// live trains on two hosts, which wait for others as long as the last call lasts.
func live(p *play) {
	python := "PYTHON_EXEC=" + pypeer.Python(p)
	line := "muster run --live --warm --max-restarts 10 --nnodes 2:4 --nproc-per-node 1 \\\n" +
		"    --rdzv-backend c10d --rdzv-endpoint host0:29400 --rdzv-id job7 examples/train_live.py --pause 0.1"
	for _, r := range []*run{p.start(0, line, python), p.start(1, line, python)} {
		r.exits(0).says(1, `^\{"step": 199, "world": 2, `)
	}
}

// security has two hosts meet with a token, then one with another token.
func security(p *play) {
	p.must(os.WriteFile(filepath.Join(p.dir, "token"), []byte("a token of at least 16 bytes"), 0o600))
	const options = " --rdzv-conf token_file=token --nnodes 2 --rdzv-backend c10d --rdzv-endpoint host0:29400"
	for _, line := range []string{"muster run" + options + " train.py", "muster doctor" + options} {
		for _, r := range []*run{p.start(0, line, p.torch()), p.start(1, line, p.torch())} {
			r.exits(0)
		}
	}
	holder := p.do(0, "muster doctor --wait 10"+options, p.torch())
	without := strings.Replace(options, " --rdzv-conf token_file=token", " --wait 10", 1)
	other := p.do(1, "muster doctor"+without, p.torch(), "MUSTER_TOKEN=another token of 16 bytes")
	p.sees("has another token", other.exits(1))
	holder.exits(1)
}

// four are runs of the same command on four hosts.
type four [4]*run

// each runs a command of the page on the host first and the three after it.
func (p *play) each(first int, line string, env ...string) four {
	p.Helper()
	var f four
	for i := range f {
		f[i] = p.start(first+i, line, env...)
	}
	for _, r := range f {
		r.exits(0)
	}
	return f
}

func (f four) says(n int, line string) {
	f[0].p.Helper()
	for _, r := range f {
		r.says(n, line)
	}
}

// job runs a command that starts 32 workers on four hosts.
func (p *play) job(first int, line string) {
	p.Helper()
	p.each(first, line).trained(8)
}

// trained checks that each rank has trained once, and so many of them on each host.
func (f four) trained(each int) {
	f[0].p.Helper()
	line := fmt.Sprintf(`(?m)^rank (\d+) of %d: training $`, len(f)*each)
	ranks := map[string]bool{}
	for _, r := range f {
		r.says(each, line)
		for _, m := range regexp.MustCompile(line).FindAllStringSubmatch(r.out.String(), -1) {
			if ranks[m[1]] {
				r.p.Errorf("rank %s has trained twice", m[1])
			}
			ranks[m[1]] = true
		}
	}
	if len(ranks) != len(f)*each {
		f[0].p.Errorf("%d ranks of %d have trained", len(ranks), len(f)*each)
	}
}

// put runs the job on hosts 0 to 3 with other options to choose the rendezvous. In
// these %d is the number of the host.
func (p *play) put(run, options string) {
	p.Helper()
	var f four
	for i := range f {
		f[i] = p.do(i, fmt.Sprintf("%s %s --rdzv-id job7 train.py", run, strings.ReplaceAll(options, "%d", fmt.Sprint(i))))
	}
	for _, r := range f {
		r.exits(0)
	}
	f.trained(2)
}

// rendezvous runs the job with a store on a host of its own, with a quorum, and with etcd.
func (p *play) rendezvous(store, run string) {
	p.Helper()
	held := p.start(0, store).says(1, "29400")
	var f four
	for i := range f {
		f[i] = p.do(1+i, run+" --rdzv-backend c10d --rdzv-endpoint host0:29400 --rdzv-id job7 train.py")
	}
	for _, r := range f {
		r.exits(0)
	}
	f.trained(2)
	held.interrupt().exits(0)

	quorum := "--rdzv-backend quorum --rdzv-endpoint host0,host1,host2"
	p.command(quorum)
	p.put(run, quorum)

	p.etcd()
	etcd := "--rdzv-backend etcd --rdzv-endpoint etcd0:2379,etcd1:2379,etcd2:2379"
	p.command(etcd)
	p.put(run, etcd)
}

// etcd starts an etcd on the last host, which has the names of all three: for a
// client it makes no difference how many members there are.
func (p *play) etcd() {
	p.Helper()
	last := p.lab.Hosts()[len(p.lab.Hosts())-1]
	for i := range p.lab.Hosts() {
		p.do(i, fmt.Sprintf(`sh -ec 'cat /etc/hosts >$TMPDIR/hosts%[1]d; echo "%[2]s etcd0 etcd1 etcd2" >>$TMPDIR/hosts%[1]d; mount --bind $TMPDIR/hosts%[1]d /etc/hosts'`, i, last.Addr)).exits(0)
	}
	dir := p.T.TempDir()
	in := filepath.Join(dir, "in")
	p.must(unix.Mkfifo(in, 0o600))
	settings, err := os.OpenFile(in, os.O_RDWR, 0) // it ends when nobody can write there
	p.must(err)
	p.Cleanup(func() { settings.Close() })
	_, err = fmt.Fprintf(settings, `{"listen": "%[1]s:2379", "peer": "%[1]s:2380", "dir": %[2]q}`+"\n", last.Addr, filepath.Join(dir, "data"))
	p.must(err)
	p.do(len(p.lab.Hosts())-1, "testetcd <"+in).says(1, "^ready$")
}

// The job of the checklist: one of its workers dies, then a scheduler takes a host away.
func production(p *play) {
	p.must(os.Symlink(filepath.Join(p.dir, "examples", "policy.yaml"), filepath.Join(p.dir, "policy.yaml")))
	p.must(os.WriteFile(filepath.Join(p.dir, "token"), []byte("a token of at least 16 bytes"), 0o600))
	p.site("mountpoint", `[ "$*" = "-q /data" ]`)
	p.site("py-spy", "exit 0")
	p.run("muster policy check policy.yaml").exits(0)

	meet := "--nnodes 3 --nproc-per-node gpu --rdzv-backend quorum --rdzv-endpoint host0,host1,host2 --rdzv-id job7"
	p.command("--rdzv-backend quorum --rdzv-endpoint host0,host1,host2") // as below
	each := func(line string, env ...string) (runs [3]*run) {
		p.Helper()
		for i := range runs {
			runs[i] = p.start(i, line, append(env, "MUSTER_DEVICES=2")...)
		}
		return runs
	}
	p.run("muster explain "+meet+" train.py", "MUSTER_DEVICES=2").exits(0)
	for _, r := range each("muster doctor "+meet+" \\\n    --rdzv-conf token_file=token --log-dir logs train.py", p.torch()) {
		r.exits(0).says(1, "3 hosts met at ")
	}

	job := each("muster run "+meet+" \\\n"+
		"    --rdzv-conf token_file=token,keep_alive_max_attempt=6,join_timeout=1800 \\\n"+
		"    --max-restarts 20 --restart-policy policy.yaml --hang-timeout auto \\\n"+
		"    --preemption-signals SIGTERM --shutdown-timeout 120 --health-check 'mountpoint -q /data' \\\n"+
		"    --log-dir logs --redirects 3 --health-addr 0.0.0.0:9000 train.py",
		"TRAIN=die:1:0 stay")
	get := p.health(0)
	job[0].says(1, "killed by SIGKILL.*restart=1/20")
	for limit := time.Now().Add(patience); !strings.Contains(get("/metrics"), "\nmuster_group_state{state=\"HEALTHY\"} 1\n"); {
		if time.Now().After(limit) {
			p.Fatal("the job has not started again")
		}
	}
	p.served(get("/metrics"))
	p.must(job[1].cmd.Process.Signal(unix.SIGTERM))
	for _, r := range job {
		r.exits(75)
	}
}

// drills breaks a job of two hosts. What takes a silent host's time limit is in test/e2e.
func drills(p *play) {
	line := "muster run --nnodes 1:2 --nproc-per-node 2 --max-restarts 3 --hang-timeout 30 --redirects 1 --log-dir logs \\\n" +
		"    --rdzv-backend c10d --rdzv-endpoint host0:29400 --rdzv-id job7 train.py"
	first := p.start(0, line)
	other := p.start(1, line)
	trains := func(attempt, ranks int) {
		p.Helper()
		logs := filepath.Join(p.dir, fmt.Sprintf("logs/*/attempt_%d/*/stdout.log", attempt))
		for limit := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
			files, err := filepath.Glob(logs)
			p.must(err)
			training := 0
			for _, file := range files {
				text, err := os.ReadFile(file)
				p.must(err)
				training += min(strings.Count(string(text), "step 1\n"), 1)
			}
			if training == ranks {
				return
			} else if time.Now().After(limit) {
				p.Fatalf("%d of %d ranks train in attempt %d", training, ranks, attempt)
			}
		}
	}
	trains(0, 4)
	p.run("muster signal KILL job7 --rank 3").exits(0).prints(false)
	first.says(1, "restart=1/3")
	trains(1, 4)
	p.run("muster signal STOP job7 --rank 2").exits(0).prints(false)
	first.says(1, "restart=2/3")
	trains(2, 4)
	p.must(other.cmd.Process.Kill())
	other.wait()
	first.says(1, "a node of the round is lost")
	first.interrupt().exits(1)
	p.sees("restart=1/3", first)
	// Either host may notice first; the other may, too, when it has been told what the workers did.
	noticed, by, out := "the workers hang", other, first.out.String()
	if i := strings.Index(out, noticed); i >= 0 && i < strings.Index(out, "what the workers did") {
		by = first
	}
	p.sees(noticed, by)
	p.sees("group_rank=1", first)
}

func restartPolicy(p *play) {
	p.must(os.Symlink(filepath.Join(p.dir, "examples", "policy.yaml"), filepath.Join(p.dir, "policy.yaml")))
	line := "muster run --restart-policy policy.yaml --nnodes 2 --rdzv-backend c10d --rdzv-endpoint host0:29400 train.py"
	other := p.start(1, line)
	p.run(line).exits(0).says(1, "^rank [01] of 2: training $")
	other.exits(0).says(1, "^rank [01] of 2: training $")
}

func slurm(p *play) {
	lab := slurmlab.New(p, slurmlab.Config{CPUs: 64, GPUs: 8})
	p.lab = lab.Net

	srun := "srun --label --cpus-per-task=$SLURM_CPUS_PER_TASK muster run --max-restarts=3 train.py"
	p.command(srun)
	i := slices.IndexFunc(p.page.Blocks, func(b Block) bool { return strings.Contains(b.Text, srun) })
	said := p.sbatch(lab, p.page.Blocks[i].Text)
	for rank := range 16 {
		if n := strings.Count(said, fmt.Sprintf(": rank %d of 16: training \n", rank)); n != 1 {
			p.Errorf("rank %d has trained %d times:\n%s", rank, n, said)
		}
	}

	// The numbers of jobs and ports are Slurm's.
	numbers := regexp.MustCompile(`rdzv-id=\d+\.\d+|host0:\d+`)
	i = slices.IndexFunc(p.page.Blocks, func(b Block) bool { return strings.Contains(b.Text, "Slurm says nnodes=2") })
	says := numbers.ReplaceAllString(strings.TrimSpace(p.page.Blocks[i].Text), "…")
	if err := Compare("…\n"+says+"\n…", said, false); err != nil {
		p.Errorf("%v:\n%s", err, said)
	}

	two := p.command("srun --nodes=2 --ntasks-per-node=2 --cpus-per-task=2 muster run train.py")
	out, err := lab.Run(p.env, "sh", "-c", two.Line)
	if err == nil || strings.Count(out, two.Output) != 4 {
		p.Errorf("%s: %v; want of four tasks %s:\n%s", two.Line, err, two.Output, out)
	}

	p.run("muster run train.py").exits(0).says(1, "^rank 0 of 1: training $")
	p.run("muster explain train.py").exits(0).says(1, "train.py")

	// What doctor.md says of it.
	said = p.sbatch(lab, "#SBATCH --nodes=2\nsrun muster doctor\n", p.torch())
	if n := len(regexp.MustCompile(`(?m)^  ok +meeting: 2 hosts met at host0:\d+`).FindAllString(said, -1)); n != 2 {
		p.Errorf("srun muster doctor: %d of 2 hosts say that they met:\n%s", n, said)
	}
}

// sbatch submits a script and returns what the job has written.
func (p *play) sbatch(lab *slurmlab.Lab, text string, env ...string) string {
	p.Helper()
	script, log := filepath.Join(p.dir, "train.sbatch"), filepath.Join(p.dir, "log")
	p.must(testproc.WriteProgram(script, "#!/bin/sh\n"+text))
	job := lab.Submit(slices.Concat(p.env, env), "--chdir="+p.dir, "--output="+log, "--open-mode=truncate", script)
	end := lab.AwaitEnd(job)
	said, err := os.ReadFile(log)
	p.must(err)
	if end.State != "COMPLETED" {
		p.Errorf("the job of %s ended as %+v:\n%s", text, end, said)
	}
	return string(said)
}
