package events_test

import (
	"fmt"
	"os"
	"time"

	"github.com/muster-run/muster/events"
)

// Events as torchrun's console handler prints them.
func ExampleOpen() {
	sink, err := events.Open(events.Config{Handler: "console", Console: os.Stdout})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sink.Close()
	sink.Record(events.Event{
		State: "START", Time: time.Unix(1.7e9, 0), RunID: "job7", Role: "default", Hostname: "host1", RdzvBackend: "c10d", EntryPoint: "python3",
		Worker: &events.Worker{PID: 4711, Rank: 3},
	})
	// Output:
	// {"name": "torchelastic.worker.status.START", "source": "WORKER", "timestamp": 1700000000000, "metadata": {"run_id": "job7", "global_rank": 3, "group_rank": null, "worker_id": "4711", "role": "default", "hostname": "host1", "state": "START", "total_run_time": 0, "rdzv_backend": "c10d", "raw_error": null, "metadata": "{\"group_world_size\": null, \"entry_point\": \"python3\", \"local_rank\": 0, \"role_rank\": 0, \"role_world_size\": 0, \"exit_code\": null, \"worker_pid\": null}", "agent_restarts": 0, "duration_ms": null}}
}
