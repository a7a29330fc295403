package election

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const programName = "muster-quorum"

// findProgram returns the path of muster-quorum.
func findProgram(given string) (string, error) {
	if given != "" {
		path, err := exec.LookPath(given)
		if err != nil {
			return "", fmt.Errorf("election: %w", err)
		}
		return path, nil
	}
	here := "this program"
	if self, err := os.Executable(); err == nil {
		here = self
		beside := filepath.Join(filepath.Dir(self), programName)
		if path, err := exec.LookPath(beside); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(programName)
	if err != nil {
		return "", fmt.Errorf(
			"the rendezvous backends etcd and quorum need the program %s, which is neither beside %s nor in PATH; copy it there from a release, or from bin/ after `make build`",
			programName, here)
	}
	return path, nil
}

// environment is this process's, without secrets, and without the proxies that etcd would
// take from it for connections within the cluster.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		switch strings.ToUpper(name) {
		case "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "MUSTER_TOKEN", "PET_RDZV_CONF":
			return true
		}
		return false
	})
}
