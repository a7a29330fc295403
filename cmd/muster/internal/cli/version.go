package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/muster-run/muster/internal/version"
)

// torchrun is the release of PyTorch whose command line muster takes.
const torchrun = "2.15"

// versionCommand is `muster version`.
func versionCommand(_ context.Context, c *command, args []string) error {
	asJSON := c.Bool("json", false, "")
	c.atMost(0, args)
	if err := c.refused(); err != nil {
		return err
	}
	if *asJSON {
		return json.NewEncoder(c.stdout).Encode(struct {
			version.Info
			Torchrun string `json:"torchrun"`
		}{version.Read(), torchrun})
	}
	return printVersion(c.stdout)
}

// printVersion is what --version prints, too.
func printVersion(w io.Writer) error {
	_, err := io.WriteString(w, versionText())
	return err
}

func versionText() string {
	v := version.Read()
	return fmt.Sprintf("muster %s %s %s/%s, torchrun %s command line\n", v, v.Go, v.OS, v.Arch, torchrun)
}
