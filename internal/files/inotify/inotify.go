// Package inotify tells of changes to files and directories, as the kernel reports
// them. It knows of changes made on this host only: see Remote.
package inotify

// A Mask says which changes to report, and in an Event which there were.
type Mask uint32

// The changes, and how to watch for them. Source: linux/inotify.h.
const (
	Modify   Mask = 1 << 1
	MovedTo  Mask = 1 << 7
	Create   Mask = 1 << 8
	Overflow Mask = 1 << 14 // events were lost

	OnlyDir Mask = 1 << 24 // fail if the path is not a directory
	Oneshot Mask = 1 << 31 // report one event, then stop watching
)

// An Event is one change.
type Event struct {
	ID   int32 // what Add returned; -1 with Overflow
	Mask Mask
}
