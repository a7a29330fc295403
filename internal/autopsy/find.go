package autopsy

// A Job is the workers of one run ID on this host, in order of their ranks.
type Job struct {
	RunID   string
	Workers []Target
}
