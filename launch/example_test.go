package launch_test

import (
	"fmt"

	"github.com/muster-run/muster/launch"
)

// A job of two workers on this host, as `muster run --nproc-per-node 2
// --no-python /bin/echo 'I am ${local_rank}'` has it.
func ExampleResolve() {
	cfg := launch.Default()
	cfg.NprocPerNode = 2
	cfg.Workers.Entrypoint = "/bin/echo"
	cfg.Workers.Args = []string{"I am ${local_rank}"}
	cfg, err := launch.Resolve(cfg)
	fmt.Println(cfg.Rendezvous.Backend, cfg.Rendezvous.Endpoint, err)
	// Output: c10d localhost:0 <nil>
}

func ExampleResolve_problems() {
	cfg := launch.Default()
	cfg.Workers.Entrypoint = "/bin/echo"
	cfg.NprocPerNode = -1
	cfg.Rendezvous.Backend = "zookeeper"
	_, err := launch.Resolve(cfg)
	fmt.Println(err)
	// Output:
	// nproc per node: at least one worker is needed, got -1
	// rendezvous backend "zookeeper" is not known, and Python plug-ins cannot be loaded; want static, c10d, etcd or quorum
}
