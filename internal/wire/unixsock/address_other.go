//go:build !linux

package unixsock

// WithAddress calls use with an address for the socket at path.
func WithAddress(path string, use func(addr string) error) error { return use(path) }
