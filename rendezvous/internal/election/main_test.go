package election_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/muster-run/muster/internal/test/programs"
	"github.com/muster-run/muster/rendezvous/internal/election"
)

// The programs that the tests start, built without -race unless test.sh says otherwise.
var muster, etcd string

func TestMain(m *testing.M) {
	if os.Getenv("ELECTION_TEST_AGENT") != "" {
		os.Exit(agentMain())
	}
	code, err := build(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func build(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "election-test-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	if err := os.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH")); err != nil { // where backends look for the program
		return 1, err
	}
	if err := os.Setenv("TMPDIR", dir); err != nil { // where members that are killed leave their data
		return 1, err
	}
	if err := programs.Put(dir, "muster-quorum", "testetcd"); err != nil {
		return 1, err
	}
	muster, etcd = filepath.Join(dir, "muster-quorum"), filepath.Join(dir, "testetcd")
	return m.Run(), nil
}

// agentMain is an agent in a process of its own, to be killed: its configuration
// is a line on stdin, and it prints a line when it leads.
func agentMain() int {
	in := bufio.NewScanner(os.Stdin)
	if !in.Scan() {
		return 1
	}
	var cfg election.Config
	if err := json.Unmarshal(in.Bytes(), &cfg); err != nil {
		fmt.Println(err)
		return 1
	}
	e, err := election.Start(context.Background(), cfg)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for {
		l, err := e.Leader(context.Background())
		if err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println("leader", l.Addr, l.Mine)
		<-e.Lost(l.Term)
	}
}
