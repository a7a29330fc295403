package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/muster-run/muster/internal/devices"
	"github.com/muster-run/muster/internal/numa"
)

// resolveDevices checks that every local rank has the device that
// VirtualLocalRank promises and fills CPUs from NUMABinding.
func (cfg *Config) resolveDevices() error {
	var errs []error
	if cfg.Workers.VirtualLocalRank {
		// The highest rank is the first to find the list too short.
		if _, err := virtualLocalRankEnv(cfg.LookupEnv, cfg.NprocPerNode-1); err != nil {
			errs = append(errs, err)
		}
	}
	if cfg.Workers.NUMABinding != "" && cfg.Workers.CPUs == nil {
		cpus, err := bindCPUs(os.DirFS("/"), cfg)
		if err != nil {
			errs = append(errs, fmt.Errorf("numa binding %s: %w", cfg.Workers.NUMABinding, err))
		}
		cfg.Workers.CPUs = cpus
	}
	return errors.Join(errs...)
}

// bindCPUs computes each worker's CPUs from the devices and the topology found
// under root.
func bindCPUs(root fs.FS, cfg *Config) (map[int][]int, error) {
	mode, err := numa.ParseMode(cfg.Workers.NUMABinding)
	if err != nil {
		return nil, err
	}
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
