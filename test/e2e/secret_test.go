//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/test/testcert"
)

const secretToken = "0123456789abcdef of this job"

// Agents with a token or certificates meet by every backend, and no worker sees a secret.
func TestSecretHosts(t *testing.T) {
	t.Parallel()
	quorumProgram(t)
	ca := testcert.New(t)
	cert, key := ca.Issue()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(secretToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, conf := range map[string]string{
		"token":            "token_file=" + file,
		"variable and TLS": "cacert=" + ca.File + ",cert=" + cert + ",key=" + key,
	} {
		for _, backend := range []string{"c10d", "static", "quorum"} {
			t.Run(backend+" with "+name, func(t *testing.T) {
				t.Parallel()
				dir, port := t.TempDir(), freePort(t)
				s := setup{env: []string{"PET_RDZV_CONF=password=S3cret"}}
				if !strings.HasPrefix(conf, "token_file") {
					s.env = append(s.env, "MUSTER_TOKEN="+secretToken)
				}
				var agents []*job
				for rank := range 2 {
					flags := fmt.Sprintf("--nnodes 2 --rdzv-id secret --rdzv-backend %s --rdzv-endpoint 127.0.0.1:%d --rdzv-conf %s --no-python", backend, port, conf)
					if backend == "static" {
						flags += fmt.Sprintf(" --node-rank %d", rank)
					}
					agents = append(agents, start(t, muster(t), s, flags, worker("dump:"+dir, "exit:0")...))
				}
				wantAll(agents, 0)
				for _, w := range dumps(t, dir, 2) {
					for name, value := range w.Env {
						if strings.Contains(value, secretToken) || strings.Contains(value, "S3cret") {
							t.Errorf("a worker has %s=%s", name, value)
						}
					}
				}
				for _, j := range agents {
					j.saysNot(secretToken, "S3cret")
				}
			})
		}
	}
}

// PyTorch's torchrun cannot take part in a job with a token: it is refused, muster says so, and
// the job continues.
func TestSecretTorchrun(t *testing.T) {
	t.Parallel()
	theirs := torchrun(t)
	m := newMixed(t, "2", "", "exit:0")
	m.env = []string{"MUSTER_TOKEN=" + secretToken}
	host := m.start(peer{l: muster(t), addr: "1", hosts: true})
	m.awaitServer(host)
	refused := m.start(peer{l: theirs, addr: "2", flags: "--rdzv-conf is_host=0,read_timeout=3,join_timeout=5"})
	if refused.status() == 0 {
		t.Errorf("torchrun took part\n%s", refused.console())
	}
	refused.says("Ping failed", "RendezvousConnectionError")
	wantAll([]*job{m.start(peer{l: muster(t), addr: "2"}), host}, 0)
	host.says("it has no token: an agent without one, or torchrun, which cannot take part")
}

// Agents that etcd has elected prove to each other that they have the job's token. One with
// another is told so, and the job continues. The workers' store is for the round's hosts.
func TestSecretEtcd(t *testing.T) {
	t.Parallel()
	c := backend(t, "etcd")
	s := newSite(t, 3+c.hosts)
	conf := s.conf
	tokenFile := func(token string) string {
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		return strings.TrimPrefix(conf+",token_file="+file, ",")
	}
	s.conf = tokenFile(secretToken)
	c.prepare(s)
	agents := s.startAll(2, "--nnodes 1:2")
	up := s.await(time.Time{}, 2, "up", 2)
	s.agree(up)
	for host, want := range []bool{true, true, false} {
		if got := s.served(host, up[0].master); got != want {
			t.Errorf("the workers' store serves host %d: %t", host, got)
		}
	}
	s.conf = tokenFile("another token, of somebody else")
	stranger := s.start(2, "--nnodes 1:2")
	s.want(1, stranger)
	stranger.says("another token")
	s.finish(agents...)
}
