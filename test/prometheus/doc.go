// Package prometheus reads muster's metrics as Prometheus does.
package prometheus
