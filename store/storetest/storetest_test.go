package storetest

import (
	"testing"

	"github.com/anishathalye/porcupine"
)

// TestModel checks that histories that cannot be are found out.
func TestModel(t *testing.T) {
	op := func(client int, call, end int64, in operation, out result) porcupine.Operation {
		in.key = "k"
		return porcupine.Operation{ClientId: client, Call: call, Return: end, Input: in, Output: out}
	}
	add := operation{op: "add", delta: 1}
	set := operation{op: "set", value: "5"}
	for _, tt := range []struct {
		name    string
		history []porcupine.Operation
		want    bool
	}{
		{"in order", []porcupine.Operation{op(0, 0, 1, add, result{n: 1}), op(1, 2, 3, add, result{n: 2})}, true},
		{"out of order at the same time", []porcupine.Operation{op(0, 0, 9, add, result{n: 2}), op(1, 1, 8, add, result{n: 1})}, true},
		{"lost update", []porcupine.Operation{op(0, 0, 9, add, result{n: 1}), op(1, 1, 8, add, result{n: 1})}, false},
		{"stale", []porcupine.Operation{op(0, 0, 1, set, result{}), op(1, 2, 3, add, result{n: 1})}, false},
		{"item popped twice", []porcupine.Operation{
			op(0, 0, 1, operation{op: "push", value: "x"}, result{}),
			op(0, 2, 5, operation{op: "pop"}, result{value: "x", ok: true}),
			op(1, 3, 4, operation{op: "pop"}, result{value: "x", ok: true}),
		}, false},
		{"both swaps won", []porcupine.Operation{
			op(0, 0, 9, operation{op: "swap", value: "a"}, result{value: "a"}),
			op(1, 0, 9, operation{op: "swap", value: "b"}, result{value: "b"}),
		}, false},
		{"one swap won", []porcupine.Operation{
			op(0, 0, 9, operation{op: "swap", value: "a"}, result{value: "a"}),
			op(1, 0, 9, operation{op: "swap", value: "b"}, result{value: "a"}),
		}, true},
	} {
		if got := porcupine.CheckOperations(model, tt.history); got != tt.want {
			t.Errorf("%s: linearizable %v, want %v", tt.name, got, tt.want)
		}
	}
}
