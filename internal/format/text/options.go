package text

import "strings"

// AsOptions replaces the names of fields, which packages use, by the
// options of the command line that set them. Of two names the longer comes first.
var AsOptions = strings.NewReplacer(
	"Spec.MinNodes:MaxNodes", "--nnodes", "Records.OnEvent", "--on-event", "Spec.Endpoint's host", "--master-addr",
	"Rendezvous.MasterAddr", "--master-addr", "Spec.Settings.OpenWorkersStore", "--rdzv-conf open_workers_store=true",
	"logs.Config.Dir", "--log-dir", "events.Config.LogDir", "--log-dir", "Rendezvous.Endpoint", "--rdzv-endpoint",
	"events.Config.File", "--event-log-file", "logs.Config.DuplicateStderrFilters", "--duplicate-stderr-filters",
	"logs.Config.DuplicateStdoutFilters", "--duplicate-stdout-filters", "Spec.Settings", "--rdzv-conf",
	"Config.Live", "--live", "Spec.RunID", "--rdzv-id", "Spec.NodeRank", "--node-rank", "Spec.Endpoint", "--rdzv-endpoint",
	"Spec.Live", "--live", "Rendezvous.Conf", "--rdzv-conf", ", as Workers.Entrypoint, or a function, as Workers.Func", "",
	"Rendezvous.MasterPort", "--master-port", "Rendezvous.Standalone", "--standalone", "Spec.LocalAddr", "--local-addr",
)
