// Package doctest reads the commands of README.md and docs/, and its tests run them:
// on hosts made of network namespaces, verbatim, and with what the page says they
// print. It serves tests only.
package doctest
