// Command container runs a program as two workers, each in a container of podman or of what RUNTIME names:
//
//	container docker.io/pytorch/pytorch python3 -u train.py
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"slices"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/process"
)

var runtime = cmp.Or(os.Getenv("RUNTIME"), "podman")

// containers are an agent.Group. Its processes are the runtime's, which pass on signals other than SIGKILL.
type containers struct {
	*process.Group
	names []string
}

func start(s *process.Supervisor, cfg process.Config) (agent.Group, error) {
	var names []string
	for i := range len(cfg.Args) {
		names = append(names, fmt.Sprintf("worker%d-of-%d", i, os.Getpid()))
		run := []string{"run", "--rm", "--network=host", "--name=" + names[i]}
		for variable, value := range cfg.Envs[i] {
			run = append(run, "--env="+variable+"="+value)
		}
		cfg.Args[i] = slices.Concat(run, []string{os.Args[1], cfg.Entrypoint}, cfg.Args[i])
	}
	cfg.Entrypoint = runtime
	group, err := s.Start(cfg)
	return containers{group, names}, err
}

func (g containers) Wait(ctx context.Context) (*process.Result, error) {
	result, err := g.Group.Wait(ctx)
	_ = exec.Command(runtime, append([]string{"kill"}, g.names...)...).Run() // those whose process got SIGKILL
	return result, err
}

func main() {
	process.GuardMain()
	cfg := launch.Default()
	cfg.NprocPerNode, cfg.Workers.Start = 2, start
	cfg.Workers.Entrypoint, cfg.Workers.Args = os.Args[2], os.Args[3:] // os.Args[1] is the image
	result, err := launch.Run(context.Background(), cfg)
	if err := errors.Join(err, result.Err()); err != nil {
		log.Fatal(err)
	}
}
