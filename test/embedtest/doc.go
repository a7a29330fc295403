// Package embedtest builds, in a module of its own, the programs that the
// documentation shows and others that use the packages, and runs them. It has
// tests only.
package embedtest
