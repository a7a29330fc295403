module github.com/muster-run/muster/bench

go 1.26.0

require (
	golang.org/x/sync v0.24.0
	golang.org/x/sys v0.49.0
)

require github.com/muster-run/muster v0.1.0
