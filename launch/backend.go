package launch

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/host/limits"
	"github.com/muster-run/muster/internal/wire/hostport"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
	"github.com/muster-run/muster/rendezvous/etcd"
	"github.com/muster-run/muster/rendezvous/quorum"
	"github.com/muster-run/muster/rendezvous/static"
	"github.com/muster-run/muster/store/tcpstore"
)

// A Backend is a way in which agents meet: a value of Rendezvous.Backend.
type Backend struct {
	Name string
	What string // it in a few words
	// New makes the rendezvous.
	New func(rendezvous.Spec) (rendezvous.Handler, error)
	// Members splits an endpoint that names several servers, and gives each its port.
	// Nil: the endpoint is one address.
	Members func(endpoint string) ([]string, error)

	check func(*Config) error // of the endpoint, where Members does not do it
}

// Backends returns all of them. A new one is a row here.
func Backends() []Backend {
	etcdMembers := func(endpoint string) ([]string, error) { return hostport.SplitList(endpoint, etcd.DefaultPort) }
	return []Backend{
		{Name: "static", What: "the host of rank 0 is named; as torchrun, the default", New: static.New,
			check: (*Config).checkStatic},
		{Name: "c10d", What: "one host serves it; torchrun's agents can join", New: c10d.New, check: (*Config).checkC10d},
		{Name: "etcd", What: "an etcd cluster; survives the loss of any host", New: etcd.New, Members: etcdMembers},
		{Name: "quorum", What: "some hosts elect who serves it; survives the loss of any host", New: quorum.New,
			Members: quorum.Members},
	}
}

// etcdV2 is the name of a backend of torchrun's. Here it means etcd.
const etcdV2 = "etcd-v2"

// FindBackend returns the backend of that name.
func FindBackend(name string) (Backend, error) {
	var names []string
	for _, b := range Backends() {
		if b.Name == name || b.Name == "etcd" && name == etcdV2 {
			return b, nil
		}
		names = append(names, b.Name)
	}
	if meant := text.Nearest(name, names...); meant != "" {
		return Backend{}, fmt.Errorf("rendezvous backend %q is not known; did you mean %s?", name, meant)
	}
	return Backend{}, fmt.Errorf(
		"rendezvous backend %q is not known, and Python plug-ins cannot be loaded; want static, c10d, etcd or quorum", name)
}

// checkEndpoint checks the endpoint as the backend reads it.
func (cfg *Config) checkEndpoint() error {
	b, err := FindBackend(cfg.Rendezvous.Backend)
	switch {
	case err != nil:
	case b.Members != nil:
		_, err = b.Members(cfg.Rendezvous.Endpoint)
	case cfg.MaxNodes > 1 && strings.HasPrefix(cfg.Rendezvous.Endpoint, ":") && net.ParseIP(cfg.Rendezvous.Endpoint) == nil:
		err = fmt.Errorf("rendezvous endpoint %q: the host is empty; give HOST:PORT", cfg.Rendezvous.Endpoint)
	default:
		err = b.check(cfg)
	}
	return err
}

// newHandler makes the rendezvous that Resolve chose.
func newHandler(cfg *Config, host string, waiting func(rendezvous.Waiting)) (rendezvous.Handler, error) {
	settings, log := *cfg.Rendezvous.settings, cfg.Logger
	for _, key := range slices.Sorted(maps.Keys(settings.Unknown)) {
		hint := "`muster help run` names the keys"
		if meant := settings.Unknown[key]; meant != "" {
			hint = "did you mean " + meant + "?"
		}
		log.Warn("the backend does not read this key of Rendezvous.Conf, so it has no effect", "key", key,
			"backend", cfg.Rendezvous.Backend, "hint", hint)
	}
	if cfg.MaxNodes > 1 && cfg.meetsAtLoopback() {
		attrs := []any{"endpoint", cmp.Or(cfg.Rendezvous.Endpoint, "localhost (default)")}
		if a, _ := cfg.LookupEnv("MASTER_ADDR"); a != "" {
			attrs = append(attrs, "hint", "MASTER_ADDR="+a+" in the environment is not read; pass it with Rendezvous.MasterAddr")
		}
		log.Warn("the endpoint is a loopback address, so other hosts cannot reach it; name one that they can reach, with Rendezvous.Endpoint or Rendezvous.MasterAddr",
			attrs...)
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
