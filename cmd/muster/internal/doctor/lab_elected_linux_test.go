package doctor_test

import (
	"bufio"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/muster-run/muster/cmd/muster/internal/doctor"
	"github.com/muster-run/muster/internal/test/programs"
)

// quorumProgram puts muster-quorum into a directory, once, that stays until the end.
var quorumProgram = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "doctor-test-")
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "muster-quorum"), programs.Put(dir, "muster-quorum")
})

// Hosts of a quorum meet by it, also one that is none of its members, and find that
// two of them cannot reach each other; without a majority they do not meet, and say so.
func TestQuorumMeets(t *testing.T) {
	s := newSite(t, 4)
	program, err := quorumProgram()
	t.Cleanup(func() { os.RemoveAll(filepath.Dir(program)) })
	if err != nil {
		t.Fatal(err)
	}
	s.env[0] += ":" + filepath.Dir(program)
	args := []string{"--nnodes=4", "--rdzv-backend=quorum", "--rdzv-endpoint=host0,host1,host2"}

	r := s.doctor(0, nil, append(args, "--wait=3")...).report()
	expect(t, r, doctor.Failure, "meeting", `^the hosts did not meet at host0:29400,host1:29400,host2:29400 within 3s: 1 of 3 members of the quorum are up`, "on every host")
	expectOnly(t, r, "meeting")

	// Nobody can connect to host3, which is no member. It comes when another is elected.
	s.drop(3, newConnections)
	first := s.lab.Host(0).Command(context.Background(), self(t), append([]string{"muster", "doctor", "--json"}, args...)...)
	visits := []*visit{{s: s, cmd: first}}
	first.Env, first.Stdout = s.env, &visits[0].out
	said, err := first.StderrPipe()
	if err == nil {
		err = first.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	visits = append(visits, s.doctor(1, nil, args...), s.doctor(2, nil, args...))
	lines := bufio.NewScanner(said)
	for lines.Scan() && !strings.Contains(lines.Text(), "3 of 4 nodes have joined") {
	}
	visits = append(visits, s.doctor(3, nil, args...))
	for lines.Scan() {
	}
	for _, v := range visits {
		r := v.report()
		expect(t, r, doctor.OK, "meeting", "^4 hosts met at host0:29400,host1:29400,host2:29400: ", "")
		expect(t, r, doctor.Failure, "connections", "^host3 reaches host0, host1, host2, but host0, host1, host2 cannot reach host3 ", "^let TCP from host0, host1, host2 to host3 through")
		expectOnly(t, r, "connections")
	}
}
