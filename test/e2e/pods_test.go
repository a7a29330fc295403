//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/muster-run/muster/internal/test/netlab"
	"github.com/muster-run/muster/internal/test/testproc"
)

// podScript runs a command as the pod of an indexed Job: with its name, and the
// /etc/hosts that the kubelet writes.
const podScript = `mount --bind "$ETC_HOSTS" /etc/hosts && hostname "$POD" && exec "$@"`

// The pods of an indexed Job find each other without a flag by their names, though
// the first comes up last and has no name before; and when one of them is told to
// stop, all do.
func TestPods(t *testing.T) {
	t.Parallel()
	const pods = 2
	lab := netlab.New(t, pods)
	etc := t.TempDir()
	var names strings.Builder // as the cluster's DNS has them
	for i, h := range lab.Hosts() {
		fmt.Fprintf(&names, "%s train-%d.train.default.svc.cluster.local train-%d\n", h.Addr, i, i)
	}
	start := func(i int, env []string) *job {
		hosts := filepath.Join(etc, itoa(i))
		// A pod's own line comes first.
		own := fmt.Sprintf("127.0.0.1 localhost\n%s train-%d.train.default.svc.cluster.local train-%d\n", lab.Host(i).Addr, i, i)
		if err := os.WriteFile(hosts, []byte(own), 0o644); err != nil {
			t.Fatal(err)
		}
		argv := append([]string{"unshare", "--uts", "--mount", "sh", "-c", podScript, "sh", filepath.Join(bin, "muster"),
			"run", "--health-addr=0.0.0.0:8080", "--no-python"}, worker("ready", "report:$TORCHELASTIC_RUN_ID $MASTER_ADDR $WORLD_SIZE", "catch:TERM", "exit:0")...)
		return onHost(t, lab.Host(i), make(chan struct{}, 1), errand{argv: argv, env: append(env,
			"MUSTER_NNODES=2", "JOB_COMPLETION_INDEX="+itoa(i), "POD=train-"+itoa(i), "ETC_HOSTS="+hosts)})
	}
	board := newBoard(t)
	env := testproc.Env(board.Board, nil, "")
	agents := []*job{start(1, env), start(0, env)}
	agents[0].board, agents[1].board = board, board
	for i := range pods {
		f, err := os.OpenFile(filepath.Join(etc, itoa(i)), os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			_, err = f.WriteString(names.String())
			f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	agents[0].await("ready 0", "ready 1").await("train 10.77.0.11 2", "train 10.77.0.11 2").await("ready 0", "ready 1")
	agents[0].signal(syscall.SIGTERM)
	agents[0].await("SIGTERM at 0", "SIGTERM at 1")
	for i, j := range agents {
		j.want(75).says("muster run: Kubernetes says nnodes=2 (MUSTER_NNODES), rdzv-id=train (the pod's name), is_host="+strconv.FormatBool(i == 1)+" (JOB_COMPLETION_INDEX), "+
			"rdzv-endpoint=train-0.train.default.svc.cluster.local:29400 (/etc/hosts, port from c10d's default)", "the job is preempted: host train-1 received SIGTERM")
	}
}
