package cli

import (
	"fmt"
	"strings"

	"github.com/muster-run/muster/failure"
)

// Exit statuses of the command line itself.
const (
	exitOK    = 0
	exitError = 1
	// exitUnfit says that this host is not fit for the job: it has failed its
	// --health-check and has not joined, or a rule of its --restart-policy has drained
	// it. It is EX_UNAVAILABLE.
	exitUnfit = 69
	exitUsage = 2
)

// An ending is an exit status, and when a program has it.
type ending struct {
	status int
	when   string
}

// endings are those of `muster run`. --exit-code=worker has others in place of exitError.
var endings = []ending{
	{exitOK, "all workers succeeded"},
	{exitError, "the job failed"},
	{exitUsage, "the command line is wrong"},
	{exitUnfit, "this host is unfit (its --health-check, or a rule that drains it)"},
	{failure.PreemptedStatus, "the job was preempted and may be started again"},
}

// endings are those of a command other than run.
func (c *subcommand) endings() []ending {
	all := []ending{{exitOK, c.ends[0]}}
	if c.ends[1] != "" {
		all = append(all, ending{exitError, c.ends[1]})
	}
	return append(all, ending{exitUsage, "the command line is wrong"})
}

// exitText is the part of a help about exit statuses.
func exitText(all []ending) string {
	var list []string
	for _, e := range all {
		list = append(list, fmt.Sprintf("%d if %s", e.status, e.when))
	}
	return "\n" + strings.Join(wrap("Exit status: "+strings.Join(list, ", ")+".", helpWidth), "\n") + "\n"
}
