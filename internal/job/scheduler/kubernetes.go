package scheduler

import (
	"fmt"
	"strconv"
	"strings"
)

// kubernetesPort is the same in every job: each pod has a network of its own.
const kubernetesPort = 29400

// kubernetes reads what a pod of an indexed Job, or of a JobSet, which consists of
// such Jobs, knows of itself. How many pods there are it cannot know: the manifest
// says so in MUSTER_NNODES, and without it a pod is a job of its own. Pods are
// called NAME-INDEX; where they meet is the name of this one with the index 0, in
// the domain that /etc/hosts has for a pod with a headless service.
//
// Kubeflow's PET_ variables are options given in the environment, and so come first.
// Source: "Completion mode" in Kubernetes' documentation of Jobs.
func kubernetes(v vars) (*Job, error) {
	const name = "Kubernetes"
	if !v.has("MUSTER_NNODES") {
		return nil, nil
	}
	job := &Job{Scheduler: name, GPUs: podGPUs(v)}
	var errs [3]error
	job.Nodes, errs[0] = v.number(1, "MUSTER_NNODES")
	job.NodeRank, errs[1] = v.number(0, "JOB_COMPLETION_INDEX")
	errs[2] = within(job.NodeRank, job.Nodes)
	if err := broken(name, errs[:]...); err != nil {
		return nil, err
	}
	host, err := v.Hostname()
	if err != nil {
		return nil, broken(name, err)
	}
	base, ok := strings.CutSuffix(short(host), "-"+strconv.Itoa(job.NodeRank.Value))
	if !ok || base == "" {
		return nil, broken(name, fmt.Errorf("the pod's host name %s does not end in -%d, as that of an indexed Job with "+
			"JOB_COMPLETION_INDEX=%d does (hostNetwork?)",
			show(host), job.NodeRank.Value, job.NodeRank.Value))
	}
	job.RunID = Fact[string]{base, "the pod's name"}
	if job.Nodes.Value == 1 {
		return job, nil
	}
	domain, err := podDomain(v, short(host))
	if err != nil {
		return nil, broken(name, err)
	}
	job.Apart = true
	job.Host = Fact[string]{base + "-0." + domain, "/etc/hosts"}
	job.Port = Fact[int]{kubernetesPort, "c10d's default"}
	return job, nil
}

// podDomain finds the domain of this pod in /etc/hosts, where the kubelet writes
// "10.1.2.3  train-3.train.default.svc.cluster.local  train-3".
func podDomain(v vars, host string) (string, error) {
	const path = "/etc/hosts"
	text, err := v.ReadFile(path)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		for field := range strings.FieldsSeq(line) {
			name, domain, _ := strings.Cut(field, ".")
			if strings.EqualFold(name, host) && domain != "" && checkHost(domain) == nil {
				return strings.TrimSuffix(domain, "."), nil
			}
		}
	}
	return "", fmt.Errorf("%s has no domain for %s: a pod needs spec.subdomain and a headless service of that name "+
		"for the others to find it", path, show(host))
}

// podGPUs counts the GPUs that the device plugin gave to the container.
func podGPUs(v vars) Fact[int] {
	if visible := v.visibleGPUs(); visible.From != "" {
		return visible
	}
	const name = "NVIDIA_VISIBLE_DEVICES"
	switch text := v.text(name); text {
	case "", "all", "none", "void":
		return Fact[int]{}
	default:
		return Fact[int]{countList(text), name}
	}
}
