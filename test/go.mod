module github.com/muster-run/muster/test

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/prometheus/client_golang v1.23.2
	github.com/prometheus/client_model v0.6.2
	github.com/prometheus/common v0.67.5
	github.com/yuin/goldmark v1.8.7
	golang.org/x/sys v0.49.0
)

require go.yaml.in/yaml/v3 v3.0.4 // indirect

require (
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/muster-run/muster v0.1.0
	go.yaml.in/yaml/v2 v2.4.3 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
)
