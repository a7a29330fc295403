package doctor

import (
	"context"
	"time"

	"github.com/muster-run/muster/internal/text"
	"github.com/muster-run/muster/launch"
)

// checkHealth runs the site's own check.
func (d *doctor) checkHealth(ctx context.Context) []Line {
	if d.HealthCheck == "" {
		return nil
	}
	start := time.Now()
	job := launch.Config{HealthCheck: d.HealthCheck, Env: d.System.Environ()}
	if err := job.CheckHealth(ctx); err != nil {
		return []Line{failure(err.Error(),
			"mend what the check reports; until then `muster run --health-check` keeps this host out of the job")}
	}
	return []Line{ok("%s: passed in %s", text.Clip(d.HealthCheck, 80), round(time.Since(start)))}
}
