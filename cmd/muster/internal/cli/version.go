package cli

import (
	"context"
	"encoding/json"
	"io"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/internal/version"
)

// versionCommand is `muster version`.
func versionCommand(_ context.Context, c *command.Command, args []string) error {
	asJSON := c.Bool("json", false, "")
	c.AtMost(0, args)
	if err := c.Refused(); err != nil {
		return err
	}
	if *asJSON {
		return json.NewEncoder(c.Stdout).Encode(struct {
			version.Info
			Torchrun string `json:"torchrun"`
		}{version.Read(), version.Torchrun})
	}
	_, err := io.WriteString(c.Stdout, version.Text())
	return err
}
