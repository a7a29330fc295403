// Package pickle reads and writes a rendezvous state as PyTorch's agents keep it
// in a store: as a Python pickle, in base64.
//
// A pickle is a program for a small stack machine that can call anything. Decode
// runs only what builds such a state, from a few classes whose names it knows. It
// makes nothing but data, calls nothing, and refuses everything else. What it may
// spend on an input, in time and memory, is bounded.
//
// It is not a general pickle library: there is no other type that it reads or writes.
package pickle
