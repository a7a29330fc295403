// Command bench measures muster beside the real torchrun and beside the floor,
// the bare system calls, in one run on one machine. The three take turns, so
// that whatever else the machine does falls on all of them alike. It writes
// medians, spread and ratios, with a chart, into docs/benchmarks.md.
//
//	make bench                      everything
//	go run ./bench -quick           fewer rounds, printed only
//	go run ./bench -run 'tee|react' some measurements, printed only
//	go run ./bench -resume FILE     keeps what is measured, and continues from there when started again
//	go run ./bench -restart FILE    a picture of where a restart's time goes, cold and warm
//	go run ./bench -change FILE     a picture of a live change
//
// Each measurement has a file of its own and returns rows; a row holds the
// samples of each contender, and every figure that is printed comes from them.
// Goals are shown beside the figures and take no part in them. Workers are
// workload/worker, a program that notes moments on the monotonic clock. The warm
// rows have two contenders more in their notes: muster without --warm, and NVRx's
// ft_launcher, which they install from PyPI; one of the live rows has torchft, from there, too.
//
// Without an interpreter that can import torch only muster and the floor are
// measured, which the page then says.
package main
