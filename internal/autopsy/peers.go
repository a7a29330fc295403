package autopsy

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/muster-run/muster/internal/pyjson"
	"github.com/muster-run/muster/internal/text"
)

// What the Reports of other hosts may take of memory, in bytes.
const (
	maxPeer  = 16 << 20  // one of them: the stacks of 128 workers take less
	maxPeers = 256 << 20 // all of them
)

// Peers reads what other hosts say of their workers, as the answers to one question. A JSON of a
// few bytes may stand for a Report of many, so its weight is found out before it is decoded. The
// zero Peers is ready to use, also concurrently.
type Peers struct {
	weight atomic.Int64 // of all that were admitted
}

// Admit says what is wrong with an answer that is not JSON, or that is too large to be decoded.
func (p *Peers) Admit(body []byte) error {
	workers, others := pyjson.Elements(body)
	weight := int64(len(body)) + int64(workers)*int64(reflect.TypeFor[Worker]().Size()) +
		int64(others)*int64(max(reflect.TypeFor[Process]().Size(), reflect.TypeFor[NativeThread]().Size(),
			reflect.TypeFor[Flight]().Size()))
	switch {
	case weight > maxPeer:
		return fmt.Errorf("its evidence is too large: it takes %s of memory, and the limit is %s", text.Size(weight),
			text.Size(maxPeer))
	case !json.Valid(body):
		return errors.New("the answer is not JSON")
	case p.weight.Add(weight) > maxPeers:
		p.weight.Add(-weight)
		return fmt.Errorf("the evidence of all hosts is too large: the limit is %s", text.Size(maxPeers))
	}
	return nil
}

// Read reads a Report. What is shown of it as one line is one.
func (p *Peers) Read(body []byte) (*Report, error) {
	if err := p.Admit(body); err != nil {
		return nil, err
	}
	r := &Report{}
	if err := json.Unmarshal(body, r); err != nil {
		return nil, err
	}
	text.Each(r, func(s string) string { return text.Line(s, len(s)) })
	return r, nil
}
