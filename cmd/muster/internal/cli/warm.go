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

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/process/warm"
)

// warmCommand is `muster warm`.
func warmCommand(_ context.Context, c *command, args []string) error {
	rest, _ := c.arguments(args)
	words := []string{"status", "explain", "clear"}
	switch {
	case len(c.errs) > 0:
	case len(rest) == 0:
		c.wrong("no action is given; want status, explain or clear")
	case !slices.Contains(words, rest[0]):
		c.wrong("unknown word %s; want status, explain or clear", quote(rest[0]))
	case len(rest) > 2 || len(rest) == 2 && rest[0] == "status":
		c.wrong("unexpected argument %s; leave it out", quote(rest[len(rest)-1]))
	}
	if err := c.refused(); err != nil {
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
			_, err := fmt.Fprintf(c.stdout, "nothing is known about %s; muster warm status lists the scripts\n", quote(rest[1]))
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
		fmt.Fprintln(c.stdout, "nothing is learnt yet")
		return nil
	}
	rows := [][]string{{"MODULES", "LEFT OUT", "TOOK", "SCRIPT", "INTERPRETER"}}
	for _, k := range all {
		modules := strconv.Itoa(k.Modules)
		if k.Changed {
			modules = "changed"
		}
		rows = append(rows, []string{modules, strconv.Itoa(len(k.Left)), k.Took.Round(10 * time.Millisecond).String(),
			printable(k.Target), printable(k.Python)})
	}
	return text.Columns(c.stdout, "", 60, rows)
}

func warmExplain(c *command, all []warm.Known) error {
	for _, k := range all {
		fmt.Fprintf(c.stdout, "%s, with %s: %d modules are imported ahead, %d are left out\n",
			printable(k.Target), printable(k.Python), k.Modules, len(k.Left))
		if k.Changed {
			fmt.Fprintln(c.stdout, "  the script or the interpreter has changed since; the next start forgets this")
		}
		for _, name := range slices.Sorted(maps.Keys(k.Left)) {
			fmt.Fprintf(c.stdout, "  %s: %s\n", name, printable(k.Left[name]))
		}
	}
	return nil
}
