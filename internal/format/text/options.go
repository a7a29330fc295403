package text

import "strings"

// AsOptions replaces the names of fields, which packages use, by the
// options of the command line that set them.
var AsOptions = strings.NewReplacer(
	"logs.Config.Dir", "--log-dir", "events.Config.LogDir", "--log-dir", "events.Config.File", "--event-log-file",
	"logs.Config.DuplicateStdoutFilters", "--duplicate-stdout-filters",
	"logs.Config.DuplicateStderrFilters", "--duplicate-stderr-filters",
	"Config.Live", "--live", "Spec.Live", "--live",
	"Rendezvous.MasterPort", "--master-port", "Rendezvous.Standalone", "--standalone",
	"Spec.RunID", "--rdzv-id", "Spec.Endpoint", "--rdzv-endpoint", "Spec.Settings", "--rdzv-conf",
	"Spec.MinNodes:MaxNodes", "--nnodes",
	", as Workers.Entrypoint, or a function, as Workers.Func", "",
)
