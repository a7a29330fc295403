package console

import (
	"fmt"
	"strings"

	"github.com/muster-run/muster/failure"
)

// Exit statuses of the command line itself.
const (
	ExitOK    = 0
	ExitError = 1
	// ExitUnfit says that this host is not fit for the job: it has failed its
	// --health-check and has not joined, or a rule of its --restart-policy has drained
	// it. It is EX_UNAVAILABLE.
	ExitUnfit = 69
	ExitUsage = 2
)

// An Ending is an exit status, and when a program has it.
type ending struct {
	Status int
	When   string
}

// Endings are those of `muster run`. --exit-code=worker has others in place of ExitError.
var Endings = []ending{
	{ExitOK, "all workers succeeded"},
	{ExitError, "the job failed"},
	{ExitUsage, "the command line is wrong"},
	{ExitUnfit, "this host is unfit (its --health-check, or a rule that drains it)"},
	{failure.PreemptedStatus, "the job was preempted and may be started again"},
}

// EndingsOf are those of a command other than run: when its status is 0, and when 1, if ever.
func EndingsOf(ends [2]string) []ending {
	all := []ending{{ExitOK, ends[0]}}
	if ends[1] != "" {
		all = append(all, ending{ExitError, ends[1]})
	}
	return append(all, ending{ExitUsage, "the command line is wrong"})
}

// ExitText is the part of a help about exit statuses.
func ExitText(all []ending) string {
	var list []string
	for _, e := range all {
		list = append(list, fmt.Sprintf("%d if %s", e.Status, e.When))
	}
	return "\n" + strings.Join(Wrap("Exit status: "+strings.Join(list, ", ")+".", HelpWidth), "\n") + "\n"
}

// HelpWidth is how wide the help is: it fits a terminal of 100 columns.
const HelpWidth = 92
