package launch

import (
	"maps"
	"slices"

	"github.com/muster-run/muster/internal/limits"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store/tcpstore"
)

// newHandler makes the rendezvous that Resolve chose.
func newHandler(cfg *Config, host string, waiting func(rendezvous.Waiting)) (rendezvous.Handler, error) {
	settings, log := *cfg.Rendezvous.settings, cfg.Logger
	for _, key := range slices.Sorted(maps.Keys(settings.Unknown)) {
		hint := "`muster help run` names the keys"
		if meant := settings.Unknown[key]; meant != "" {
			hint = "did you mean " + meant + "?"
		}
		log.Warn("the backend does not read this key of --rdzv-conf, so it has no effect", "key", key,
			"backend", cfg.Rendezvous.Backend, "hint", hint)
	}
	if cfg.MaxNodes > 1 && cfg.meetsAtLoopback() {
		log.Warn(
			"the endpoint is an address that every host has for itself; the other hosts must name this one by an address that they reach, with --rdzv-endpoint or --master-addr",
			"endpoint", cfg.Rendezvous.Endpoint)
	}
	noShare, _ := cfg.LookupEnv(envNoSharedStore)
	spec := rendezvous.Spec{
		RunID:            cfg.RunID,
		Endpoint:         cfg.Rendezvous.Endpoint,
		MinNodes:         cfg.MinNodes,
		MaxNodes:         cfg.MaxNodes,
		NodeRank:         cfg.Rendezvous.NodeRank,
		Role:             cfg.Workers.Role,
		LocalWorldSize:   cfg.NprocPerNode,
		Host:             host,
		LocalAddr:        cfg.Rendezvous.LocalAddr,
		PrivateStore:     noShare == "1",
		Live:             cfg.Live,
		IdenticalWorkers: identicalWorkers(cfg),
		Conns:            &tcpstore.Limit{Max: limits.Connections(cfg.NprocPerNode)},
		OnWaiting:        waiting,
		Settings:         settings,
		Logger:           log,
	}
	backend, err := FindBackend(cfg.Rendezvous.Backend)
	if err != nil {
		return nil, err
	}
	if cfg.Rendezvous.Backend == etcdV2 {
		log.Warn("the rendezvous backend etcd-v2 speaks etcd's v3 API here; agents of PyTorch cannot take part")
	}
	return backend.New(spec)
}
