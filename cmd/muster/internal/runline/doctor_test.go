package runline

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/muster-run/muster/cmd/muster/internal/doctor"
	"github.com/muster-run/muster/rendezvous"
)

func TestParseDoctor(t *testing.T) {
	for _, tt := range []struct {
		line string
		want doctorRequest
		rest string
		errs string
	}{
		{"", doctorRequest{wait: doctor.DefaultWait}, "", ""},
		{"--json --wait 2.5 --nnodes 2", doctorRequest{json: true, wait: 2500 * time.Millisecond}, "--nnodes 2", ""},
		{"--wait=5 -r 3 --standalone", doctorRequest{wait: 5 * time.Second}, "-r 3 --standalone", ""},
		// A value is not doctor's option, and neither are the script's.
		{"--rdzv-id=--json train.py --json", doctorRequest{wait: doctor.DefaultWait}, "--rdzv-id=--json train.py --json", ""},
		{"--rdzv-id --json", doctorRequest{json: true, wait: doctor.DefaultWait}, "", "argument --rdzv-id/--rdzv_id: expected one argument"},
		{"-mt3 --json pkg --wait", doctorRequest{json: true, wait: doctor.DefaultWait}, "-mt3 pkg --wait", ""},
		{"-- --json", doctorRequest{wait: doctor.DefaultWait}, "-- --json", ""},
		{"--wait", doctorRequest{wait: doctor.DefaultWait}, "", "--wait needs a value; write --wait VALUE"},
		{"--wait soon", doctorRequest{}, "", "--wait cannot be 'soon'; want seconds, or a time such as 10m, more than 0 and at most 3600s"},
		{"--wait=NaN", doctorRequest{}, "", "--wait cannot be 'NaN'; want seconds, or a time such as 10m, more than 0 and at most 3600s"},
	} {
		t.Run(tt.line, func(t *testing.T) {
			req, got, errs := parseDoctor(strings.Fields(tt.line))
			var texts []string
			for _, err := range errs {
				texts = append(texts, err.Error())
			}
			if text := strings.Join(texts, "\n"); text != tt.errs {
				t.Errorf("got errors %q, want %q", text, tt.errs)
			}
			if tt.errs != "" {
				req.wait, tt.want.wait = 0, 0
			}
			if req != tt.want {
				t.Errorf("got %+v, want %+v", req, tt.want)
			}
			if want, _ := parseLine(strings.Fields(tt.rest)); !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v of run's, want %+v", got, want)
			}
		})
	}
}

func TestReadDoctor(t *testing.T) {
	yes, no := true, false
	for _, tt := range []struct {
		name, line string
		env        []string
		want       doctor.Config
		errs       string
	}{
		{"one host", "", nil, doctor.Config{Backend: "c10d", MinNodes: 1, MaxNodes: 1, Workers: doctor.Workers{Count: 1}}, ""},
		{"an endpoint alone means c10d", "--nnodes 2 --rdzv-endpoint h", nil,
			doctor.Config{Backend: "c10d", Host: "h", Port: 29400, MinNodes: 2, MaxNodes: 2, Workers: doctor.Workers{Count: 1}}, ""},
		{"static without an endpoint", "--nnodes 2", nil,
			doctor.Config{Backend: "static", Host: "127.0.0.1", Port: 29500, MinNodes: 2, MaxNodes: 2, Workers: doctor.Workers{Count: 1}}, ""},
		{"static says who hosts", "--nnodes 2 --master-addr h --node-rank 1", nil,
			doctor.Config{Backend: "static", Host: "h", Port: 29500, MinNodes: 2, MaxNodes: 2, Workers: doctor.Workers{Count: 1}, Settings: rendezvous.Settings{IsHost: &no}}, ""},
		{"a whole line of run", "--nnodes 1:4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint h:1 --rdzv-conf is_host=1 --local-addr l --log-dir d --health-check c --no-python /bin/sh y", nil,
			doctor.Config{Backend: "c10d", Host: "h", Port: 1, MinNodes: 1, MaxNodes: 4, Workers: doctor.Workers{Count: 8}, LocalAddr: "l", LogDir: "d", HealthCheck: "c", Settings: rendezvous.Settings{IsHost: &yes}}, ""},
		{"etcd", "--nnodes 2 --rdzv-backend etcd --rdzv-endpoint a,b:3", nil,
			doctor.Config{Backend: "etcd", Members: []string{"a:2379", "b:3"}, MinNodes: 2, MaxNodes: 2, Workers: doctor.Workers{Count: 1}}, ""},
		{"devices are counted later", "--nproc-per-node gpu", []string{"MUSTER_DEVICES=0"},
			doctor.Config{Backend: "c10d", MinNodes: 1, MaxNodes: 1, Workers: doctor.Workers{Count: 1, Word: "gpu"}}, ""},
		{"devices that are told", "--nproc-per-node auto --devices 4", nil,
			doctor.Config{Backend: "c10d", MinNodes: 1, MaxNodes: 1, Workers: doctor.Workers{Count: 4, Word: "auto"}}, ""},
		{"port 0", "--nnodes 2 --rdzv-endpoint h:0", nil,
			doctor.Config{Backend: "c10d", MinNodes: 2, MaxNodes: 2, Workers: doctor.Workers{Count: 1}}, "nnodes=2, and the endpoint h:0 has port 0, which no other host can know; name a port"},
		{"wrong", "--nnodes 2:1", nil, doctor.Config{Backend: "c10d", MinNodes: 1, MaxNodes: 1, Workers: doctor.Workers{Count: 1}},
			"argument --nnodes: min_nodes must be > 0 and <= max_nodes, got min_nodes=2, max_nodes=1"},
		{"a variable that is none", "", []string{"MUSTER_HANG_TIMOUT=60"}, doctor.Config{Backend: "c10d", MinNodes: 1, MaxNodes: 1, Workers: doctor.Workers{Count: 1}},
			"unknown variable MUSTER_HANG_TIMOUT; did you mean MUSTER_HANG_TIMEOUT?"},
		{"the scheduler says", "", []string{"SLURM_JOB_ID=7", "SLURM_JOB_NUM_NODES=2", "SLURM_NNODES=2", "SLURM_NODEID=1", "SLURM_NTASKS=2", "SLURM_PROCID=1", "SLURM_LOCALID=0", "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=n[0-1]", "SLURM_JOB_NODELIST=n[0-1]", "SLURM_STEP_NUM_NODES=2", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_TASKS_PER_NODE=1(x2)", "SLURM_TASKS_PER_NODE=1(x2)"},
			doctor.Config{Backend: "c10d", Host: "n0", MinNodes: 2, MaxNodes: 2, Workers: doctor.Workers{Count: 1}, Settings: rendezvous.Settings{IsHost: &no}}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, errs := parseLine(strings.Fields(tt.line))
			p := Program{Name: "muster doctor", env: append([]string{"PATH=", "PYTHON_EXEC=/py"}, tt.env...), Stderr: nil}
			got, bad := p.readDoctor(l, doctorRequest{})
			var texts []string
			for _, err := range append(errs, bad...) {
				texts = append(texts, err.Error())
			}
			if text := strings.Join(texts, "\n"); text != tt.errs {
				t.Errorf("got errors %q, want %q", text, tt.errs)
			}
			if tt.name == "the scheduler says" {
				if got.Port == 0 || got.RunID == "none" {
					t.Errorf("got port %d and run ID %q, want Slurm's", got.Port, got.RunID)
				}
				got.Port = 0
			}
			if strings.Contains(tt.line, "--nproc-per-node gpu") != (got.Workers.Err != nil) {
				t.Errorf("got %v about the devices", got.Workers.Err)
			}
			got.Settings = rendezvous.Settings{IsHost: got.Settings.IsHost}
			ignore := cmpopts.IgnoreFields(doctor.Config{}, "RunID", "Python", "Workers.Err", "Progress", "Logger", "System")
			if d := cmp.Diff(tt.want, got, ignore); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// Without an interpreter the script's check of Python fails; the command line is right.
func TestReadDoctorWithoutPython(t *testing.T) {
	l, errs := parseLine([]string{"doctor_test.go"})
	p := Program{Name: "muster doctor", env: []string{"PATH=/nowhere"}}
	got, bad := p.readDoctor(l, doctorRequest{})
	if errs != nil || len(bad) > 0 || got.Python.Err == nil {
		t.Errorf("got the errors %v %v, and %v of Python", errs, bad, got.Python.Err)
	}
}
