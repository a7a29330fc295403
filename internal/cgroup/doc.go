// Package cgroup makes cgroups (version 2) in which workers run, so that all
// their descendants can be listed and killed, whatever they did to get away.
// Only Linux has them.
package cgroup
