package launch

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/muster-run/muster/internal/host/devices"
	"github.com/muster-run/muster/internal/host/numa"
)

// resolveDevices checks that every local rank has the device that
// VirtualLocalRank promises and fills CPUs from NUMABinding.
func (cfg *Config) resolveDevices() error {
	if cfg.NprocPerNode < 1 {
		return nil
	}
	var virtual, binding error
	if cfg.Workers.VirtualLocalRank {
		// The highest rank is the first to find the list too short.
		_, virtual = virtualLocalRankEnv(cfg.LookupEnv, cfg.NprocPerNode-1)
	}
	if cfg.Workers.NUMABinding != "" && cfg.Workers.CPUs == nil {
		if cfg.Workers.CPUs, binding = bindCPUs(cfg); binding != nil {
			binding = fmt.Errorf("numa binding %s: %w", cfg.Workers.NUMABinding, binding)
		}
	}
	return errors.Join(virtual, binding)
}

// bindCPUs computes each worker's CPUs from the devices and the topology.
func bindCPUs(cfg *Config) (map[int][]int, error) {
	mode, err := numa.ParseMode(cfg.Workers.NUMABinding)
	if err != nil {
		return nil, err
	}
	root := os.DirFS("/")
	found, err := devices.System{Root: root, Lookup: cfg.LookupEnv}.Accelerators()
	if err != nil {
		return nil, err
	}
	addresses := make([]string, len(found))
	for i, d := range found {
		addresses[i] = d.PCI
	}
	allowed, err := devices.AllowedCPUs()
	if err != nil {
		return nil, err
	}
	return numa.Topology{Root: root, Allowed: allowed, Devices: addresses}.Bind(mode, cfg.NprocPerNode)
}

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
	source := envCUDADevices
	if list, _ := lookup(envHIPDevices); list != "" {
		source = envHIPDevices
	}
	list, ok := lookup(source)
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
	return map[string]string{"LOCAL_RANK": "0", envCUDADevices: device, source: device}, nil
}
