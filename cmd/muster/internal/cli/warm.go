package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/process/warm"
)

// warmCommand is `muster warm`.
func warmCommand(_ context.Context, c *command.Command, args []string) error {
	rest, _ := c.Arguments(args)
	words := []string{"status", "explain", "clear"}
	switch {
	case len(c.Errs) > 0:
	case len(rest) == 0:
		c.Wrong("no action is given; want status, explain or clear")
	case !slices.Contains(words, rest[0]):
		c.Wrong("unknown word %s; want status, explain or clear", console.Quote(rest[0]))
	case len(rest) > 2 || len(rest) == 2 && rest[0] == "status":
		c.Wrong("unexpected argument %s; leave it out", console.Quote(rest[len(rest)-1]))
	}
	if err := c.Refused(); err != nil {
		return err
	}
	all, err := warm.List("")
	if err != nil {
		return err
	}
	if len(rest) == 2 {
		path, _ := filepath.Abs(rest[1])
		all = slices.DeleteFunc(all, func(k warm.Known) bool { return k.Target != rest[1] && k.Target != path })
		if len(all) == 0 {
			_, err := fmt.Fprintf(c.Stdout, "nothing is known about %s; muster warm status lists the scripts\n",
				console.Quote(rest[1]))
			return err
		}
	}
	switch rest[0] {
	case "explain":
		return warmExplain(c, all)
	case "clear":
		var errs []error
		for _, k := range all {
			errs = append(errs, k.Forget())
		}
		return errors.Join(errs...)
	}
	if len(all) == 0 {
		fmt.Fprintln(c.Stdout, "nothing is learnt yet")
		return nil
	}
	rows := [][]string{{"MODULES", "LEFT OUT", "TOOK", "SCRIPT", "INTERPRETER"}}
	for _, k := range all {
		modules := strconv.Itoa(k.Modules)
		if k.Changed {
			modules = "changed"
		}
		rows = append(rows, []string{modules, strconv.Itoa(len(k.Left)), k.Took.Round(10 * time.Millisecond).String(),
			console.Printable(k.Target), console.Printable(k.Python)})
	}
	return text.Columns(c.Stdout, "", 60, rows)
}

func warmExplain(c *command.Command, all []warm.Known) error {
	for _, k := range all {
		fmt.Fprintf(c.Stdout, "%s, with %s: %d modules are imported ahead, %d are left out\n",
			console.Printable(k.Target), console.Printable(k.Python), k.Modules, len(k.Left))
		if k.Changed {
			fmt.Fprintln(c.Stdout, "  the script or the interpreter has changed since; the next start forgets this")
		}
		for _, name := range slices.Sorted(maps.Keys(k.Left)) {
			fmt.Fprintf(c.Stdout, "  %s: %s\n", name, console.Printable(k.Left[name]))
		}
	}
	return nil
}
