// Package tui draws lines of text over a whole terminal and reads its keys: what
// `muster top` needs, and no more. A Terminal is raw while it is open, and is given
// back as it was by Close, which a caller defers so that a panic closes it too.
//
// The package knows ANSI sequences that every terminal of the last thirty years
// understands. It reads no terminfo.
package tui
