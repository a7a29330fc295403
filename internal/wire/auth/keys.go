package auth

import "slices"

// guards are the keys of --rdzv-conf that close a job to others.
var guards = [...]string{"bind", "allow", "cacert", "ca_cert", "cert", "ssl_cert", "key", "ssl_cert_key", "token_file"}

// IsGuard reports whether a key of --rdzv-conf closes a job to others.
func IsGuard(key string) bool { return slices.Contains(guards[:], key) }
