package scheduler

import (
	"fmt"
	"strings"

	"github.com/muster-run/muster/internal/format/text"
)

// readHosts reads a file with one host a line, the same one as often as it has
// slots.
func readHosts(v vars, name string) ([]string, error) {
	path := v.text(name)
	text, err := v.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var list []string
	for line := range strings.Lines(string(text)) {
		if host, _, _ := strings.Cut(strings.TrimSpace(line), " "); host != "" {
			list = append(list, host)
		}
	}
	return hostsOf(name+"="+show(path), list)
}

// hostsOf returns each of some hosts once, in their order. from is where they are listed.
func hostsOf(from string, list []string) (hosts []string, err error) {
	seen := map[string]bool{}
	for _, host := range list {
		if seen[host] {
			continue
		}
		if err := checkHost(host); err != nil {
			return nil, fmt.Errorf("%s: %w", from, err)
		}
		if len(hosts) == maxHosts {
			return nil, fmt.Errorf("%s: %w", from, tooMany())
		}
		seen[host], hosts = true, append(hosts, host)
	}
	if len(hosts) == 0 {
		return nil, fmt.Errorf("%s: no host", from)
	}
	return hosts, nil
}

func checkHost(host string) error {
	if len(host) > maxHostName || strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return fmt.Errorf("%s is not a host name", show(host))
	}
	return nil
}

// byName fills in the number of hosts, which one this is, and where they meet, from
// a list of the hosts.
func (job *Job) byName(v vars, hosts []string, from string) error {
	name, err := v.Hostname()
	if err != nil {
		return err
	}
	i := index(hosts, name)
	if i < 0 {
		return fmt.Errorf("this host, %s, is not among the %s of %s", show(name), text.Count(len(hosts), "host"), from)
	}
	job.Nodes = Fact[int]{len(hosts), from}
	job.NodeRank = Fact[int]{i, from + " and the host's name"}
	job.meet(Fact[string]{hosts[0], from})
	return nil
}

// pbs reads what PBS Pro and OpenPBS tell a job. Which host this is follows
// from its name, since the batch script and pbsdsh share one environment.
// Source: qsub(1B), "Environment".
func pbs(v vars) (*Job, error) {
	if !v.has("PBS_JOBID") || v.text("PBS_ENVIRONMENT") == "PBS_INTERACTIVE" && !v.has("PBS_NODEFILE") {
		return nil, nil
	}
	job := &Job{Scheduler: "PBS", RunID: v.first("PBS_JOBID")}
	if !v.has("PBS_NODEFILE") {
		return nil, broken("PBS", fmt.Errorf("PBS_JOBID is set, but PBS_NODEFILE is not"))
	}
	hosts, err := readHosts(v, "PBS_NODEFILE")
	if err == nil {
		err = job.byName(v, hosts, "PBS_NODEFILE")
	}
	if err != nil {
		return nil, broken("PBS", err)
	}
	job.GPUs = v.visibleGPUs()
	return job, nil
}

// lsf reads what LSF tells a job. Which host this is follows from its name, since
// the batch script and blaunch share one environment.
// Source: "Environment variables set for job execution" in LSF's reference.
func lsf(v vars) (*Job, error) {
	if !v.has("LSB_JOBID") {
		return nil, nil
	}
	job := &Job{Scheduler: "LSF", RunID: v.first("LSB_JOBID"), GPUs: v.visibleGPUs()}
	if i := v.first("LSB_JOBINDEX"); i.From != "" && i.Value != "0" {
		job.RunID = Fact[string]{job.RunID.Value + "." + i.Value, job.RunID.From + ", " + i.From}
	}
	hosts, from, err := lsfHosts(v)
	if err == nil && from == "" {
		err = fmt.Errorf("LSB_JOBID is set, but none of LSB_DJOB_HOSTFILE, LSB_MCPU_HOSTS and LSB_HOSTS is")
	}
	if err == nil {
		err = job.byName(v, hosts, from)
	}
	if err != nil {
		return nil, broken("LSF", err)
	}
	return job, nil
}

// lsfHosts lists the hosts of an LSF job. LSB_HOSTS is missing in large jobs.
func lsfHosts(v vars) (hosts []string, from string, err error) {
	list := v.first("LSB_MCPU_HOSTS", "LSB_HOSTS", "LSB_DJOB_HOSTFILE")
	switch list.From {
	case "LSB_MCPU_HOSTS":
		hosts, err = parseMCPUHosts(list.Value)
	case "LSB_HOSTS": // a host once for each of its slots: "hostA hostA hostB"
		hosts, err = hostsOf(list.From+"="+show(list.Value), strings.Fields(list.Value))
	case "LSB_DJOB_HOSTFILE":
		hosts, err = readHosts(v, list.From)
	}
	return hosts, list.From, err
}

// parseMCPUHosts reads LSB_MCPU_HOSTS, pairs of a host and its number of slots:
// "hostA 4 hostB 2".
func parseMCPUHosts(text string) ([]string, error) {
	from, host := "LSB_MCPU_HOSTS="+show(text), ""
	var list []string
	for field := range strings.FieldsSeq(text) {
		if host == "" {
			host = field
			continue
		}
		if _, err := parseDigits(field); err != nil {
			return nil, fmt.Errorf("%s: want a number of slots after %s, got %s", from, show(host), show(field))
		}
		list, host = append(list, host), ""
	}
	if host != "" {
		return nil, fmt.Errorf("%s: the number of slots of %s is missing", from, show(host))
	}
	return hostsOf(from, list)
}
