package autopsy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/muster-run/muster/internal/job/autopsy"
	"github.com/muster-run/muster/internal/test/testproc"
)

func TestMain(m *testing.M) {
	testproc.Main()
	if len(os.Args) == 3 && os.Args[1] == "take-as-another-user" {
		pid, _ := strconv.Atoi(os.Args[2])
		r := autopsy.Take(context.Background(), "", []autopsy.Target{{PID: pid}}, autopsy.Config{})
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
