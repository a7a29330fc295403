module github.com/muster-run/muster/internal/tools

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/yuin/goldmark v1.8.7
	golang.org/x/sys v0.49.0
)

require github.com/muster-run/muster v0.1.0
