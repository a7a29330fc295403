package pickle

import (
	"fmt"
	"iter"
	"time"

	"github.com/muster-run/muster/rendezvous"
)

// A reader turns values into Go's. It keeps the first error, after which it
// returns zero values.
type reader struct {
	*machine
	signs signs
	err   error
}

func (r *reader) want(what string, v value, kinds ...kind) bool {
	if r.err == nil {
		r.err = want(what, v, kinds...)
	}
	return r.err == nil
}

func (r *reader) int(what string, v value) int {
	if !r.want(what, v, number) {
		return 0
	}
	return v.int()
}

func (r *reader) bool(what string, v value) bool { return r.want(what, v, yes, no) && v.kind == yes }

func (r *reader) time(what string, v value) time.Time {
	if !r.want(what, v, clock, naive) {
		return time.Time{}
	}
	if v.kind == naive {
		r.signs.naive = true
	}
	return r.times[v.n]
}

// len returns the length of a bag; 0 if it is none, or has too many nodes.
func (r *reader) len(what string, v value, k kind) int {
	if !r.want(what, v, k) {
		return 0
	}
	n, each := len(r.bags[v.n].items), 1
	if k == dict {
		each = 2
	}
	if n > MaxNodes*each {
		r.err = fmt.Errorf("%s has %d nodes, more than %d", what, n/each, MaxNodes)
		return 0
	}
	return n
}

func (r *reader) node(v value) (n rendezvous.Node) {
	if !r.want("a key or member", v, node) {
		return n
	}
	if r.nodes[v.n].fqdn {
		r.signs.fqdn = true
	}
	return r.nodes[v.n].Node
}

// items yields the nodes and values of a dict that len has approved.
func (r *reader) items(v value) iter.Seq2[rendezvous.Node, value] {
	return func(yield func(rendezvous.Node, value) bool) {
		if r.err != nil {
			return
		}
		items := r.bags[v.n].items
		for i := 0; i < len(items); i += 2 {
			n := r.node(items[i])
			if r.err != nil || !yield(n, items[i+1]) {
				return
			}
		}
	}
}

func (r *reader) set(what string, v value) rendezvous.Set {
	s := make(rendezvous.Set, r.len(what, v, set))
	if r.err != nil {
		return s
	}
	for _, v := range r.bags[v.n].items {
		n := r.node(v)
		if r.err != nil {
			break
		}
		s.Add(n)
	}
	return s
}
