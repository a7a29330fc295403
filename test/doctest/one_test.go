//go:build linux

package doctest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/testproc"
)

func hangs(p *play) {
	p.run("muster run --nproc-per-node 4 --hang-timeout 600 --max-restarts 3 train.py").exits(0).says(4, "training $")
}

func observe(p *play) {
	job := p.do(0, "muster run --nproc-per-node 8 --tee 3 --health-addr 9000 train.py", "TRAIN=beat stay").says(8, "step 12000 ")
	get := p.health(0)
	metrics := ""
	for _, span := range p.page.Spans {
		switch {
		case span == "/metrics":
			metrics = get(span)
		case span == "/v1/logs": // as a name: it wants a rank
		case strings.HasPrefix(span, "/") && !strings.HasPrefix(span, "/tmp/") && !strings.HasPrefix(span, "/run/"):
			get(span)
		}
	}
	p.served(metrics)
	for _, form := range []string{"muster top JOB", "muster dump JOB", "muster logs JOB", "muster restart JOB", "muster stop JOB"} {
		p.do(0, p.form(form, "JOB", job.pid())).exits(0)
	}
	job.exits(1)
	top(p)
	times(p)
	p.write("hook.py", hook)
	server := p.do(0, "python3 -u hook.py").says(1, "^listening$")
	p.run("muster run --on-event 'python3 examples/webhook.py http://127.0.0.1:9100/' --nproc-per-node 2 --max-restarts 1 train.py", "TRAIN=boom").exits(1)
	server.says(2, `: start$`).says(3, `: (failure|restart): rank \d .*: boom`).says(1, `: end \(failed\): rank `)
	server.interrupt()
}

// top looks at a job on two hosts, by each way to name it.
func top(p *play) {
	line := "muster run --nnodes 2 --nproc-per-node 8 --max-restarts 3 --tee 3 --health-addr 9000 \\\n" +
		"    --rdzv-backend c10d --rdzv-endpoint host0:29400 --rdzv-id llama-7b train.py"
	train := "TRAIN=die:3:0 stay::0 deadline:2 beat stay"
	hosts := []*run{p.start(0, line, train), p.start(1, line, train)}
	for _, h := range hosts {
		h.says(8, "step 12000 ")
	}
	// The agent begins to ask what the other host is called when it is asked itself.
	for limit := time.Now().Add(patience); ; {
		seen := p.do(0, "muster top localhost:9000").exits(0).says(1, "^muster train.py  running HEALTHY  llama-7b")
		if strings.Contains(seen.out.String(), "host0* (8) host1") || time.Now().After(limit) {
			break
		}
	}
	p.run("muster top").exits(0).prints(false)
	p.do(0, p.form("muster top HOST:PORT", "HOST:PORT", "localhost:9000")).exits(0).says(1, "^muster train.py  .*llama-7b ")
	p.do(0, p.form("muster top JOB", "JOB", "llama-7b")).exits(0).says(1, "^muster train.py  .*llama-7b ")
	p.do(0, "muster top "+hosts[0].pid()).exits(0).says(1, "^muster train.py  .*llama-7b ")
	for _, h := range hosts {
		h.interrupt().exits(1)
	}
	job := p.do(0, "muster run --health-addr unix:socket --rdzv-id small train.py", "TRAIN=stay").says(1, "training $")
	p.do(0, p.form("muster top unix:PATH", "PATH", "socket")).exits(0).says(1, "^muster train\\.py .* small ")
	job.interrupt().exits(1)
}

// times runs a job on two hosts that restarts, and asks where its time went.
func times(p *play) {
	const line = "muster run --nnodes 2 --nproc-per-node 2 --max-restarts 1 --log-dir logs --rdzv-backend c10d " +
		"--rdzv-endpoint host0:29400 --rdzv-id small train.py"
	other := p.do(1, line, "TRAIN=boom:3:0")
	p.do(0, line, "TRAIN=boom:3:0").exits(0)
	other.exits(0)
	p.run("muster report --time logs").exits(0).says(1, "^train.py: 4 workers on 2 hosts in 1 run, .* of wall clock$").
		says(1, "^ +account +worker time +share$").says(1, "^ +attempt_0 of run 1 .* of start and imports, ").
		says(1, `^ +rank 3 \(local_rank 1, pid \d+\) on host host[01]: ValueError: boom$`)
}

// hook is a server of webhooks: it prints the text of what is posted to it.
const hook = `
import http.server, json
class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        print(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
        self.send_response(204)
        self.end_headers()
    def log_message(self, *args):
        pass
with http.server.HTTPServer(("127.0.0.1", 9100), Hook) as server:
    print("listening")
    server.serve_forever()
`

// served checks that the metrics that the page names are there.
func (p *play) served(metrics string) {
	p.Helper()
	for _, span := range p.page.Spans {
		for _, name := range regexp.MustCompile(`\bmuster_[a-z_]+`).FindAllString(span, -1) {
			if !strings.Contains(metrics, "\n"+name) {
				p.Errorf("/metrics has no %s", name)
			}
		}
	}
}

// health asks an agent of a host for its health, at port 9000.
func (p *play) health(host int) (get func(path string) string) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(_ context.Context, network, _ string) (c net.Conn, err error) {
			err = p.lab.Host(host).Do(func() (err error) {
				c, err = net.DialTimeout(network, "127.0.0.1:9000", patience)
				return err
			})
			return c, err
		},
	}}
	return func(path string) string {
		p.Helper()
		answer, err := client.Get("http://localhost:9000" + path)
		p.must(err)
		defer answer.Body.Close()
		from := io.Reader(answer.Body)
		if strings.Contains(path, "follow=1") { // has no end
			from = io.LimitReader(from, 1)
		}
		body, err := io.ReadAll(from)
		if err != nil || answer.StatusCode != http.StatusOK {
			p.Errorf("%s: %s, %v: %s", path, answer.Status, err, body)
		}
		return string(body)
	}
}

func logs(p *play) {
	// The workers write while the agent does not read, so that it reads all at once.
	gates := make([]string, 4)
	for i := range gates {
		gates[i] = filepath.Join(p.temp, fmt.Sprint("gate", i))
		p.must(unix.Mkfifo(gates[i], 0o600))
	}
	p.must(unix.Mkfifo(filepath.Join(p.temp, "board"), 0o600))
	board := p.open(filepath.Join(p.temp, "board"))
	job := p.start(0, "muster run --standalone --nproc-per-node 8 --tee 3 --collapse train.py", "OMP_NUM_THREADS=1", testproc.Unpaused)
	arrive := func() { // of all workers at the next gate
		p.Helper()
		p.must(board.SetReadDeadline(time.Now().Add(patience)))
		_, err := io.ReadFull(board, make([]byte, 8))
		p.must(err)
	}
	pass := func(gate string) {
		p.Helper()
		_, err := p.open(gate).Write(make([]byte, 8))
		p.must(err)
	}
	arrive()
	for i, line := range []string{"loading", `epoch 1, (?s:.*)epoch 1, `, "warning"} {
		p.must(job.cmd.Process.Signal(unix.SIGSTOP))
		p.must(unix.Waitid(unix.P_PID, job.cmd.Process.Pid, nil, unix.WSTOPPED, nil))
		pass(gates[i])
		arrive()
		p.must(job.cmd.Process.Signal(unix.SIGCONT))
		job.says(1, line)
	}
	pass(gates[3])
	job.exits(0).prints(true)
	p.must(os.Rename(filepath.Join(p.dir, "train.py"), filepath.Join(p.dir, "lines.py")))
	p.must(os.Rename(filepath.Join(p.dir, "plain.py"), filepath.Join(p.dir, "train.py")))

	p.run("muster run --nproc-per-node 2 --tee 3 --log-dir logs train.py").exits(0).says(1, `^\[default0\]:rank 0 of 2: training $`)
	for rank := range 2 {
		for _, stream := range []string{"stdout", "stderr"} {
			if found, err := filepath.Glob(fmt.Sprintf("%s/logs/*_????????/attempt_0/%d/%s.log", p.dir, rank, stream)); len(found) != 1 {
				p.Errorf("rank %d: %s is in %v, %v", rank, stream, found, err)
			}
		}
	}
	p.run("muster logs logs --collapse").exits(0).says(2, `^\[[01]\]: rank [01] of 2: training $`)

	job = p.do(0, "muster run --nproc-per-node 8 --tee 3 --log-dir logs train.py", "TRAIN=stay").says(8, "training $")
	follow := p.start(0, "muster logs logs --follow").says(1, `rank 7 of 8`)
	p.run("muster logs logs --rank 3,5-7 --stream stderr --lines 20").exits(0)
	job.interrupt().exits(1)
	follow.interrupt().exits(0)
}

// open opens a named pipe so that nobody at its other end finds it closed.
func (p *play) open(path string) *os.File {
	p.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	p.must(err)
	p.Cleanup(func() { f.Close() })
	return f
}

func afterAFailure(p *play) {
	p.run("muster run --nproc-per-node 2 --max-restarts 1 --redirects 3 --log-dir logs train.py", "TRAIN=boom:1 stay").exits(1).prints(false)
	p.run("muster report logs").exits(0).prints(false)
	p.run("muster bundle logs").exits(0).says(1, `^Wrote muster-\S+_\w{8}\.tar\.gz\. Look at it`)
}

// pid is the process's number as its host has it.
func (r *run) pid() string {
	r.p.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
	r.p.must(err)
	numbers := regexp.MustCompile(`(?m)^NSpid:.*\t(\d+)$`).FindSubmatch(status)
	if numbers == nil {
		r.p.Fatalf("no NSpid in %s", status)
	}
	return string(numbers[1])
}

func doctor(p *play) {
	p.site("py-spy", "exit 0")
	p.run("muster doctor --nproc-per-node gpu --log-dir /data/logs train.py", "MUSTER_DEVICES=8", p.torch()).
		exits(0).says(1, "^  ok +log directory: /data/logs ").says(1, "^host0: all is well$")

	// The firewall drops SYN without ACK, of IPv4 and IPv6.
	firewall := "15,40 0 0 12,21 0 5 2048,48 0 0 23,21 0 9 6,177 0 0 14,80 0 0 27,5 0 0 4,21 0 5 34525,48 0 0 20,21 0 3 6,48 0 0 67,84 0 0 18,21 1 0 2,6 0 0 0,6 0 0 2"
	p.do(1, `sh -ec 'tc qdisc add dev eth0 clsact; tc filter add dev eth0 ingress protocol all bpf da bytecode "`+firewall+`"'`).exits(0)
	p.do(2, "sh -ec 'ip link add bad0 type veth peer name bad1; ip addr add 10.88.0.1/24 dev bad0; ip link set bad0 up; ip link set bad1 up'").exits(0)
	line := "muster doctor --nnodes 3 --rdzv-endpoint host0:29400"
	first := p.start(0, line, p.torch())
	others := []*run{p.start(1, line, p.torch()), p.start(2, line, p.torch(), "GLOO_SOCKET_IFNAME=bad0")}
	// How far the clocks are apart depends on the machine.
	clocks := regexp.MustCompile(`(?m)^  (ok|warning) +clocks: .*\n( +→.*\n)?|(, \d warnings?)$`)
	first.shown = clocks.ReplaceAllString(first.shown, "")
	first.exits(1).only(clocks).prints(false)
	for _, r := range others {
		r.exits(1).says(1, "connections: host1 reaches host0, host2, but host0, host2 cannot reach host1")
	}

	check := "muster run --health-check 'dcgmi diag -r 1 && mountpoint -q /data' --nproc-per-node gpu train.py"
	p.site("dcgmi", `[ "$*" = "diag -r 1" ]`)
	p.site("mountpoint", `[ "$*" = "-q /data" ]`)
	p.run(check, "MUSTER_DEVICES=8").exits(0).says(8, "training $")
	p.site("dcgmi", "echo GPU 3 is broken; exit 226")
	p.run(check, "MUSTER_DEVICES=8").exits(69).says(1, "GPU 3 is broken")
}

// site puts a program of the site's own into the path, as a shell script.
func (p *play) site(name, script string) {
	p.Helper()
	p.must(os.MkdirAll(filepath.Join(p.dir, "site"), 0o777))
	p.must(testproc.WriteProgram(filepath.Join(p.dir, "site", name), "#!/bin/sh\n"+script+"\n"))
}
