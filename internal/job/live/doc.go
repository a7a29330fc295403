// Package live decides how the workers of a job continue when others are lost, or come
// (docs/internals/live.md): who the members are (Agree), and what one host has to wait for and
// to do (Host). Package agent acts on it, and rendezvous/internal/simulate tries it out.
//
// Nothing here waits, reads a clock or locks.
package live
