package pickle

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/muster-run/muster/rendezvous"
)

// newObject executes NEWOBJ: a class, and the arguments of its __new__.
func (m *machine) newObject() error {
	v, err := m.pop(2)
	if err != nil {
		return err
	}
	if v[1].kind != empty {
		return fmt.Errorf("an object made with %v as arguments, want none", v[1].kind)
	}
	switch v[0] {
	case value{class, classState}:
		if m.state.made {
			return errors.New("a second rendezvous state")
		}
		m.state.made = true
		return m.push(state, 0)
	case value{class, classNode}:
		if len(m.nodes) >= maxEach {
			return errMany
		}
		m.nodes = append(m.nodes, member{})
		return m.push(node, uint32(len(m.nodes)-1))
	}
	return fmt.Errorf("an object of %v that no rendezvous state makes so", v[0].kind)
}

// build executes BUILD: it gives the object on the stack its attributes.
func (m *machine) build() error {
	v, err := m.pop(1)
	if err != nil {
		return err
	}
	obj, err := m.peek()
	if err != nil {
		return err
	}
	if v[0].kind != dict {
		return fmt.Errorf("attributes in %v, want a dict", v[0].kind)
	}
	items := m.bags[v[0].n].items
	if err := m.spend(len(items)); err != nil {
		return err
	}
	switch obj.kind {
	case node:
		return m.buildNode(&m.nodes[obj.n], items)
	case state:
		return m.buildState(items)
	}
	return fmt.Errorf("attributes for %v", obj.kind)
}

// buildNode reads the attributes of a node. Others than those known are ignored.
func (m *machine) buildNode(n *member, items []value) error {
	if n.complete {
		return errors.New("a node that gets attributes twice")
	}
	var addr, fqdn, pid, local value
	for i := 0; i < len(items); i += 2 {
		if items[i].kind != text {
			return fmt.Errorf("%v as the name of an attribute", items[i].kind)
		}
		switch v := items[i+1]; string(m.bytesAt(items[i].n)) {
		case "addr":
			addr = v
		case "fqdn":
			fqdn = v
		case "pid":
			pid = v
		case "local_id":
			local = v
		}
	}
	if addr.kind == unset && fqdn.kind != unset {
		addr, n.fqdn = fqdn, true
	}
	err := cmp.Or(want("a node's addr", addr, text), want("a node's pid", pid, number), want("a node's local_id", local, number))
	if err != nil {
		return err
	}
	name := m.bytesAt(addr.n)
	if len(name) > MaxAddr {
		return fmt.Errorf("a node's addr of %d bytes, more than %d", len(name), MaxAddr)
	}
	if err := m.spend(len(name) / 8); err != nil {
		return err
	}
	n.Node = rendezvous.Node{Addr: string(name), PID: pid.int(), LocalID: local.int()}
	n.complete = true
	return nil
}

// buildState takes note of the attributes of the state. Others than those known
// are ignored.
func (m *machine) buildState(items []value) error {
	if m.state.complete {
		return errors.New("a state that gets attributes twice")
	}
	m.state.complete = true
	for i := 0; i < len(items); i += 2 {
		if items[i].kind != text {
			return fmt.Errorf("%v as the name of an attribute", items[i].kind)
		}
		if into := m.state.named(m.bytesAt(items[i].n)); into != nil {
			*into = items[i+1]
		}
	}
	return nil
}

func (a *attrs) named(name []byte) *value {
	switch string(name) {
	case "round":
		return &a.round
	case "complete":
		return &a.completed
	case "deadline":
		return &a.deadline
	case "closed":
		return &a.closed
	case "participants":
		return &a.participants
	case "wait_list":
		return &a.waiting
	case "redundancy_list":
		return &a.redundant
	case "last_heartbeats":
		return &a.beating
	}
	return nil
}

// want refuses a value that is missing or not of a kind.
func want(what string, v value, kinds ...kind) error {
	for _, k := range kinds {
		if v.kind == k {
			return nil
		}
	}
	if v.kind == unset {
		return fmt.Errorf("%s is missing", what)
	}
	return fmt.Errorf("%s is %v, want %v", what, v.kind, kinds[0])
}

// reduce executes REDUCE, a call with a tuple of arguments, where it makes a
// time, a set or bytes.
func (m *machine) reduce() error {
	v, err := m.pop(2)
	if err != nil {
		return err
	}
	args, ok := m.tupleOf(v[1])
	if v[0].kind != class || !ok {
		return fmt.Errorf("a call of %v with %v", v[0].kind, v[1].kind)
	}
	switch v[0].n {
	case classTimedelta:
		zero := value{number, 0}
		if len(args) != 3 || args[0] != zero || args[1] != zero || args[2] != zero {
			return errors.New("a timedelta that is not (0, 0, 0): times have to be in UTC")
		}
		return m.push(delta, 0)
	case classTimezone:
		if len(args) != 1 || args[0].kind != delta {
			return errors.New("a timezone that is not UTC")
		}
		return m.push(utc, 0)
	case classDatetime:
		return m.reduceTime(args)
	case funcSet:
		return m.reduceSet(args)
	case funcEncode:
		return m.reduceEncode(args)
	}
	return errors.New("a call of a class that no rendezvous state makes")
}

func (m *machine) reduceTime(args []value) error {
	zone := naive
	if len(args) == 2 && args[1].kind == utc {
		zone = clock
	} else if len(args) != 1 {
		return errors.New("a datetime with other arguments than bytes and UTC")
	}
	var b []byte
	switch v := args[0]; v.kind {
	case octets:
		b = m.bytesAt(v.n)
	case latin:
		s := m.bytesAt(v.n)
		if len(s) <= 20 { // more cannot be ten characters below U+0100
			b, _ = latin1(s)
		}
	default:
		return fmt.Errorf("a datetime made from %v, want bytes", v.kind)
	}
	at, ok := datetime(b)
	if !ok {
		return fmt.Errorf("a datetime of the %d bytes %x: there is no such time", len(b), b)
	}
	if len(m.times) >= maxEach {
		return errMany
	}
	m.times = append(m.times, at)
	return m.push(zone, uint32(len(m.times)-1))
}

// reduceSet makes a set of a list, as protocols 2 and 3 do.
func (m *machine) reduceSet(args []value) error {
	if len(args) != 1 || args[0].kind != list {
		return errors.New("a set made from something else than a list")
	}
	items := m.bags[args[0].n].items
	if err := m.newBag(set); err != nil {
		return err
	}
	return m.add(set, items)
}

// reduceEncode makes bytes of a str, as protocol 2 does.
func (m *machine) reduceEncode(args []value) error {
	if len(args) != 2 || args[0].kind != text || args[1].kind != text || string(m.bytesAt(args[1].n)) != "latin1" {
		return errors.New("encode of other arguments than a str and 'latin1'")
	}
	s := m.bytesAt(args[0].n)
	if err := m.spend(len(s) / 8); err != nil {
		return err
	}
	for _, r := range string(s) {
		if r > 0xff {
			return fmt.Errorf("%q in bytes", r)
		}
	}
	return m.push(latin, args[0].n)
}
