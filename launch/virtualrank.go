package launch

import (
	"fmt"
	"strconv"
	"strings"
)

// Variables that say which devices a process may use.
const (
	envCUDADevices = "CUDA_VISIBLE_DEVICES"
	envHIPDevices  = "HIP_VISIBLE_DEVICES"
)

// virtualLocalRankEnv returns the variables that make a worker see only its own
// device, as device 0, when LOCAL_RANK is virtual: LOCAL_RANK itself and the
// visible devices. lookup reads the agent's environment.
// Source: LocalElasticAgent._set_local_rank_env.
func virtualLocalRankEnv(lookup func(string) (string, bool), localRank int) (map[string]string, error) {
	source := envHIPDevices
	list, ok := lookup(envHIPDevices)
	hip := ok && list != ""
	if !hip {
		source = envCUDADevices
		list, ok = lookup(envCUDADevices)
	}
	device := strconv.Itoa(localRank)
	if ok {
		devices := strings.Split(list, ",")
		if localRank >= len(devices) {
			return nil, fmt.Errorf(
				"virtual local rank: local rank %d has no device: %s=%s lists %d; start fewer workers or list more devices",
				localRank, source, list, len(devices))
		}
		device = strings.TrimSpace(devices[localRank])
	}
	env := map[string]string{"LOCAL_RANK": "0", envCUDADevices: device}
	if hip {
		env[envHIPDevices] = device
	}
	return env, nil
}
