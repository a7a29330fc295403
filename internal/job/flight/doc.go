// Package flight reads what PyTorch's flight recorder has kept of each rank, and says in one line
// which rank a collective waits for, or what else is wrong.
//
// Each rank records the collectives, sends and receives that it enters: the process group, the number
// in that group, the kind, the sizes and what has become of it. Read makes a Dump of what one rank
// wrote, in either of PyTorch's formats. Compare lines the dumps up: the operations of one group with
// one number are one operation, in which all members of the group must be, each with the same kind
// and size. An operation that has not ended is a wait. Who has not come to it may itself be in another
// wait; the verdict is about the wait at the end of that chain.
//
// A verdict has evidence in the dumps or does not name a rank. Bytes from outside give errors.
//
// The package asks no process for its dump and reads no files.
package flight
