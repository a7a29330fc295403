package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/sleep"
	"github.com/muster-run/muster/internal/text"
)

const chaosUsage = `usage: muster chaos [JOB] DRILL... [--every TIME] [--for TIME] [--seed N] [--json]

Breaks a part of a job of this user that runs, on whichever of its hosts, and shows how
soon the job notices, and when it runs again. It asks nothing before it begins. A drill
picks its victim at random, or takes the rank or host named after it:

  JOB                a job's run ID, or the pid of its agent (muster run), as muster ps
                     shows them; without it the one job of this user

  --kill-rank        kill a worker (SIGKILL); --kill-rank 3 that of rank 3
  --stop-rank        stop a worker (SIGSTOP), as one that hangs; it gets SIGCONT at the end
                     of the drill
  --kill-agent       kill the agent of a host (SIGKILL), whose workers end with it;
                     --kill-agent 1 that of group rank 1, --kill-agent=NAME of a host
  --stop-agent       end an agent (SIGTERM), upon which its host leaves the job
  --cut-host         stop an agent and its workers (SIGSTOP) for --cut-time: the other hosts
                     hear nothing of it, as if its network were down

  --every TIME       go on with the next drill after this time, such as 60s, or as soon as
                     the one before is over; without it each drill is done once
  --for TIME         with --every: begin none after this time; without it until SIGINT
  --seed N           the same seed picks the same victims (default: another one each time)
  --cut-time TIME    how long --cut-host lasts, more than the keep-alive limit (default 20s)
  --limit TIME       how long the job may take until it has all its ranks again (default 60s)
  --json             print a JSON object for each drill, and one for the summary

The table has one line a drill: when the job noticed, what it did, when its workers ran
again, with how many of its ranks, and when with all. Nobody starts an agent again but the
scheduler. The agent that this command asks is spared, unless the job has another one here.
`

// A chaosRequest is what `muster chaos` was asked for.
type chaosRequest struct {
	job                         string
	drills                      []drillKind
	every, lasts, limit, silent time.Duration
	seed                        uint64
	json                        bool
}

// A drillKind is a drill as the command line has it.
type drillKind struct{ what, victim string } // victim is a number or a host's name; "": any

// drillNames are the options that ask for a drill.
var drillNames = []string{"kill-rank", "stop-rank", "kill-agent", "stop-agent", "cut-host"}

// A drillFlag is one of those options, whose value may be left out.
type drillFlag struct {
	what string
	to   *[]drillKind
}

func (drillFlag) String() string   { return "" }
func (drillFlag) IsBoolFlag() bool { return true }
func (f drillFlag) Set(victim string) error {
	if victim == "true" {
		victim = ""
	}
	*f.to = append(*f.to, drillKind{f.what, victim})
	return nil
}

func (k drillKind) ofRank() bool { return strings.HasSuffix(k.what, "-rank") }

// means says whether a rank, or a host, is to be the victim, or may be.
func (k drillKind) means(rank int, host string) bool {
	n, err := strconv.Atoi(k.victim)
	return k.victim == "" || k.victim == host || err == nil && n == rank
}

func (k drillKind) String() string { return strings.TrimSpace(k.what + " " + k.victim) }

func parseChaos(c *command, args []string) (req chaosRequest) {
	for _, name := range drillNames {
		c.Var(drillFlag{name, &req.drills}, name, "")
	}
	joined := slices.Clone(args)
	for i := len(joined) - 1; i > 0; i-- { // a number that follows such an option is its victim
		_, err := strconv.ParseUint(joined[i], 10, 31)
		if name, ok := strings.CutPrefix(joined[i-1], "--"); ok && err == nil && slices.Contains(drillNames, name) {
			joined = slices.Replace(joined, i-1, i+1, joined[i-1]+"="+joined[i])
		}
	}
	req.limit, req.silent, req.seed = time.Minute, 20*time.Second, uint64(rand.Uint32())
	c.duration("every", &req.every, 24*time.Hour)
	c.duration("for", &req.lasts, 30*24*time.Hour)
	c.duration("limit", &req.limit, 24*time.Hour)
	c.duration("cut-time", &req.silent, 10*time.Minute)
	c.value("seed", "a number, at least 0", func(text string) (err error) {
		req.seed, err = strconv.ParseUint(text, 10, 64)
		return err
	})
	c.BoolVar(&req.json, "json", false, "")
	req.job = c.atMost(1, joined)[0]
	if c.errs == nil && req.drills == nil {
		c.wrong("no drill; name one, such as --kill-rank")
	}
	if req.lasts > 0 && req.every == 0 {
		c.wrong("--for needs --every; add it, or leave --for out")
	}
	for _, k := range req.drills {
		if _, err := strconv.ParseUint(k.victim, 10, 31); k.ofRank() && k.victim != "" && err != nil {
			c.wrong("--%s cannot be %s; want a rank", k.what, quote(k.victim))
		}
	}
	return req
}

// chaosCommand is `muster chaos`.
func chaosCommand(ctx context.Context, c *command, args []string) error {
	req := parseChaos(c, args)
	if err := c.refused(); err != nil {
		return err
	}
	jobs, err := theJob(ctx, req.job, false)
	if err != nil {
		return err
	}
	if j := &jobs[0]; j.UID != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %s; drills are for jobs of your own: run this command as that user", j.name(), j.user())
	}
	random, began := rand.New(rand.NewPCG(req.seed, 0)), time.Now()
	head := c.stdout
	if req.json {
		head = c.stderr
	}
	fmt.Fprintf(head, "%s: %v, each to recover within %v, seed %d", jobs[0].name(), req.drills, req.limit, req.seed)
	if req.every > 0 {
		fmt.Fprintf(head, ", every %v", req.every)
	}
	if req.lasts > 0 {
		fmt.Fprintf(head, " for %v", req.lasts)
	}
	fmt.Fprintln(head)
	var all []*drill
	for n := 1; ; n++ {
		kind := req.drills[(n-1)%len(req.drills)]
		d := &drill{Number: n, What: kind.what}
		d.run(ctx, &req, kind, random)
		if ctx.Err() != nil {
			break
		}
		all = append(all, d)
		if err := c.showDrill(d, req.json); err != nil {
			return err
		}
		next := began.Add(time.Duration(n) * req.every)
		if d.Outcome == drillEnded || req.every == 0 && n == len(req.drills) || req.lasts > 0 && max(next.Sub(began), time.Since(began)) >= req.lasts {
			break
		}
		if sleep.For(ctx, max(0, time.Until(next))) != nil {
			break
		}
	}
	err = c.sumUp(all, req.json)
	for _, d := range all {
		if d.Outcome != drillRecovered && d.Outcome != drillSmaller {
			err = errors.Join(err, fmt.Errorf("drill %d, %s: %s", d.Number, d.What, cmp.Or(d.Problem, d.Outcome)))
		}
	}
	return err
}

const drillRow = "%3v  %-10s  %-28s  %8s  %-11s  %8s  %7s  %8s  %8s\n"

// showDrill prints a drill's line.
func (c *command) showDrill(d *drill, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(c.stdout).Encode(d)
	}
	if d.Number == 1 {
		fmt.Fprintf(c.stdout, drillRow, "", "DRILL", "VICTIM", "NOTICED", "THEN", "RUNS", "RANKS", "WHOLE", "RESTARTS")
	}
	then := cmp.Or(d.How, d.Outcome)
	ranks, restarts := "-", "-"
	if d.RanksBefore > 0 {
		ranks, restarts = fmt.Sprintf("%d/%d", d.Ranks, d.RanksBefore), strconv.Itoa(d.Restarts)
	}
	_, err := fmt.Fprintf(c.stdout, drillRow, d.Number, d.What, cmp.Or(d.Victim.String(), "-"), inWords(d.Noticed), then, inWords(d.Running), ranks, inWords(d.Whole), restarts)
	return err
}

// inWords is a number of seconds; 0 is none.
func inWords(seconds float64) string {
	switch d := time.Duration(seconds * float64(time.Second)); {
	case d == 0:
		return "-"
	case d < time.Second:
		return fmt.Sprintf("%d ms", max(1, d.Milliseconds()))
	default:
		return fmt.Sprintf("%.1f s", seconds)
	}
}

// A spread is of a time of those drills that have it.
type spread struct {
	Median float64 `json:"median"`
	Worst  float64 `json:"worst"`
	Of     int     `json:"of"`
}

// spreads are of the times that drills have.
func spreads(all []*drill) map[string]spread {
	times, found := map[string][]float64{}, map[string]spread{}
	for _, d := range all {
		for name, seconds := range map[string]float64{"noticed": d.Noticed, "running": d.Running, "whole": d.Whole} {
			if seconds > 0 {
				times[name] = append(times[name], seconds)
			}
		}
	}
	for name, t := range times {
		slices.Sort(t)
		n := len(t)
		found[name+"_seconds"] = spread{math.Round((t[(n-1)/2]+t[n/2])*5e5) / 1e6, t[n-1], n}
	}
	return found
}

// sumUp prints the summary.
func (c *command) sumUp(all []*drill, asJSON bool) error {
	outcomes, of := map[string]int{}, spreads(all)
	for _, d := range all {
		outcomes[d.Outcome]++
	}
	if asJSON {
		return json.NewEncoder(c.stdout).Encode(map[string]any{"summary": map[string]any{"drills": len(all), "outcomes": outcomes, "times": of}})
	}
	line := text.Count(len(all), "drill")
	for _, o := range slices.Sorted(maps.Keys(outcomes)) {
		line += fmt.Sprintf(", %d %s", outcomes[o], o)
	}
	for _, name := range []string{"noticed", "running", "whole"} {
		if s, ok := of[name+"_seconds"]; ok {
			line += fmt.Sprintf("\n%-8s median %s, worst %s, of %d", name, inWords(s.Median), inWords(s.Worst), s.Of)
		}
	}
	_, err := fmt.Fprintln(c.stdout, line)
	return err
}
