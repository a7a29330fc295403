// Package wheeltest builds the Python wheel for this platform and tries it in
// virtual environments: pip installs it, the tests in python/tests run, and so do
// the commands of docs/python.md. It has tests only.
package wheeltest
