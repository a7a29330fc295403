package k8scheck_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const root = "../.."

// decode reads one document strictly: an unknown or repeated field is an error.
func decode(document []byte) (any, error) {
	var kind meta.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return nil, err
	}
	objects := map[meta.TypeMeta]any{
		{APIVersion: "v1", Kind: "Service"}:                             &core.Service{},
		{APIVersion: "batch/v1", Kind: "Job"}:                           &batch.Job{},
		{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet"}:        &jobset.JobSet{},
		{APIVersion: "trainer.kubeflow.org/v1alpha1", Kind: "TrainJob"}: &trainer.TrainJob{},
	}
	object, ok := objects[kind]
	if !ok {
		return nil, &os.PathError{Op: "decode", Path: kind.APIVersion + " " + kind.Kind, Err: os.ErrInvalid}
	}
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, err
	}
	// As the API server does it, where a field's case counts.
	wrong, err := json.UnmarshalStrict(text, object)
	return object, errors.Join(append(wrong, err)...)
}

// documents reads the manifests, by the name of their file.
func documents(t *testing.T) map[string][][]byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "examples", "kubernetes", "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no manifests (%v)", err)
	}
	all := map[string][][]byte{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(path)] = bytes.Split(text, []byte("\n---\n"))
	}
	return all
}

func TestManifests(t *testing.T) {
	muster := build(t)
	for name, docs := range documents(t) {
		t.Run(name, func(t *testing.T) {
			services := map[string]bool{}
			for _, document := range docs {
				object, err := decode(document)
				if err != nil {
					t.Fatal(err)
				}
				switch o := object.(type) {
				case *core.Service:
					if o.Spec.ClusterIP != core.ClusterIPNone || !o.Spec.PublishNotReadyAddresses {
						t.Errorf("the service %s does not give every pod a name from its beginning", o.Name)
					}
					services[o.Name] = true
				case *batch.Job:
					if !services[o.Spec.Template.Spec.Subdomain] {
						t.Errorf("there is no service %q", o.Spec.Template.Spec.Subdomain)
					}
					checkJob(t, &o.Spec)
					checkCommand(t, muster, o.Spec.Template.Spec.Containers[0])
				case *jobset.JobSet:
					if n := o.Spec.Network; n == nil || n.EnableDNSHostnames == nil || !*n.EnableDNSHostnames {
						t.Error("pods have no names")
					}
					for _, job := range o.Spec.ReplicatedJobs {
						checkJob(t, &job.Template.Spec)
						checkCommand(t, muster, job.Template.Spec.Template.Spec.Containers[0])
					}
				case *trainer.TrainJob:
					checkCommand(t, muster, core.Container{Command: o.Spec.Trainer.Command, Args: o.Spec.Trainer.Args})
				}
			}
		})
	}
}

// checkJob checks what muster relies on in an indexed Job.
func checkJob(t *testing.T, job *batch.JobSpec) {
	t.Helper()
	if job.CompletionMode == nil || *job.CompletionMode != batch.IndexedCompletion {
		t.Error("the Job is not indexed: pods have no JOB_COMPLETION_INDEX")
	}
	if job.Completions == nil || job.Parallelism == nil || *job.Completions != *job.Parallelism {
		t.Error("not all pods run at the same time")
	}
	pod := job.Template.Spec
	if pod.RestartPolicy != core.RestartPolicyNever {
		t.Errorf("restartPolicy is %s: podFailurePolicy needs Never", pod.RestartPolicy)
	}
	container := pod.Containers[0]
	nodes := ""
	for _, env := range container.Env {
		if env.Name == "MUSTER_NNODES" {
			nodes = env.Value
		}
	}
	if want := strconv.Itoa(int(*job.Completions)); nodes != want {
		t.Errorf("MUSTER_NNODES is %q, completions %s", nodes, want)
	}
	ports := map[string]int32{}
	for _, port := range container.Ports {
		ports[port.Name] = port.ContainerPort
	}
	for what, probe := range map[string]*core.Probe{"/healthz": container.LivenessProbe, "/readyz": container.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != what || ports[probe.HTTPGet.Port.StrVal] == 0 {
			t.Errorf("no probe asks %s at a port of the container", what)
			continue
		}
		if want := "--health-addr=0.0.0.0:" + strconv.Itoa(int(ports[probe.HTTPGet.Port.StrVal])); !slices.Contains(container.Args, want) {
			t.Errorf("%s is asked at another port than %s", what, want)
		}
	}
	if container.Lifecycle == nil || container.Lifecycle.PreStop == nil {
		t.Error("no preStop")
	}
	checkFailurePolicy(t, job.PodFailurePolicy, container.Name)
}

// checkFailurePolicy checks that the statuses are muster's.
func checkFailurePolicy(t *testing.T, policy *batch.PodFailurePolicy, container string) {
	t.Helper()
	actions := map[int32]batch.PodFailurePolicyAction{}
	for _, rule := range policy.Rules {
		if rule.OnExitCodes == nil {
			continue
		}
		if rule.OnExitCodes.ContainerName == nil || *rule.OnExitCodes.ContainerName != container {
			t.Errorf("a rule is for another container than %s", container)
		}
		for _, status := range rule.OnExitCodes.Values {
			actions[status] = rule.Action
		}
	}
	for status, want := range map[int32]batch.PodFailurePolicyAction{2: batch.PodFailurePolicyActionFailJob, 75: batch.PodFailurePolicyActionIgnore} {
		if actions[status] != want {
			t.Errorf("status %d: %q, want %s", status, actions[status], want)
		}
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "reference", "exit-codes.md"))
	if err != nil {
		t.Fatal(err)
	}
	for status := range actions {
		if n := strconv.Itoa(int(status)); !strings.Contains(string(text), "| "+n+" |") {
			t.Errorf("docs/reference/exit-codes.md knows no status %s", n)
		}
	}
}

// build returns muster: that of `make build` where test.sh says where it is, or built now.
func build(t *testing.T) string {
	t.Helper()
	if built := os.Getenv("MUSTER_BINARIES"); built != "" {
		return filepath.Join(built, "muster")
	}
	path := filepath.Join(t.TempDir(), "muster")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "./cmd/muster")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build muster: %v\n%s", err, out)
	}
	return path
}

// checkCommand has muster explain the container's command line.
func checkCommand(t *testing.T, muster string, container core.Container) {
	t.Helper()
	if !slices.Equal(container.Command, []string{"muster", "run"}) {
		t.Fatalf("the command is %q", container.Command)
	}
	cmd := exec.Command(muster, append([]string{"explain"}, container.Args...)...)
	cmd.Dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(cmd.Dir, "train.py"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "PYTHON_EXEC=/bin/sh"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%q: %v\n%s", container.Args, err, out)
	}
}

// A manifest with a field that does not exist, or exists elsewhere, is refused.
func TestStrict(t *testing.T) {
	mistakes := [][2]string{
		{"completions:", "completion:"},
		{"backoffLimit:", "backofLimit:"},
		{"onExitCodes:", "onExitCode:"},
		{"httpGet:", "httpget:"},
		{"numNodes:", "nodes:"},
		{"publishNotReadyAddresses:", "publishNotReady:"},
		{"maxRestarts:", "restarts:"},
	}
	refused := map[string]bool{}
	for name, docs := range documents(t) {
		for _, document := range docs {
			for _, m := range mistakes {
				wrong := bytes.Replace(document, []byte(m[0]), []byte(m[1]), 1)
				if bytes.Equal(wrong, document) {
					continue
				}
				if _, err := decode(wrong); err == nil {
					t.Errorf("%s with %s is accepted", name, m[1])
				} else if strings.Contains(err.Error(), strings.TrimSuffix(m[1], ":")) {
					refused[m[1]] = true
				}
			}
		}
	}
	for _, m := range mistakes {
		if !refused[m[1]] {
			t.Errorf("no error names %s", m[1])
		}
	}
}

// The image has every program, as internal/tools/build.sh makes them.
func TestImageHasEveryProgram(t *testing.T) {
	programs, err := filepath.Glob(filepath.Join(root, "cmd", "*"))
	if err != nil || len(programs) == 0 {
		t.Fatalf("no programs (%v)", err)
	}
	for _, file := range []string{"examples/kubernetes/Dockerfile", "internal/tools/build.sh"} {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		words := strings.Fields(string(text))
		for _, program := range programs {
			if name := "./cmd/" + filepath.Base(program); !slices.Contains(words, name) {
				t.Errorf("%s does not build %s", file, name)
			}
		}
	}
}
