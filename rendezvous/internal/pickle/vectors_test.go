package pickle_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/rendezvous/internal/pickle"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

// vectors were captured from PyTorch or made by hand; "decoded" is the same in JSON.
type vectors struct {
	States     []vector
	MustReject []struct{ ID, Base64, Why string } `json:"must_reject"`
}

type vector struct {
	ID, Torch, Base64 string
	Protocol          int `json:"pickle_protocol"`
	Decoded           decoded
}

// old says that an agent of 1.13 wrote the state.
func (v vector) old() bool { return strings.HasPrefix(v.Torch, "1.13") }

type decoded struct {
	Round            int
	Complete, Closed bool
	Deadline         *string
	Participants     []struct {
		Node node
		Rank int
	}
	WaitList       []node `json:"wait_list"`
	RedundancyList []node `json:"redundancy_list"`
	LastHeartbeats []struct {
		Node node
		Time string
	} `json:"last_heartbeats"`
}

type node struct {
	Addr, FQDN string
	PID        int
	LocalID    int `json:"local_id"`
}

func (n node) node() state.Node {
	return state.Node{Addr: n.Addr + n.FQDN, PID: n.PID, LocalID: n.LocalID}
}

func (d decoded) state(t testing.TB) *state.State {
	t.Helper()
	s := state.NewState()
	s.Round, s.Complete, s.Closed = d.Round, d.Complete, d.Closed
	if d.Deadline != nil {
		s.Deadline = parse(t, *d.Deadline)
	}
	for _, p := range d.Participants {
		s.Participants[p.Node.node()] = p.Rank
	}
	for _, n := range d.WaitList {
		s.WaitList.Add(n.node())
	}
	for _, n := range d.RedundancyList {
		s.RedundancyList.Add(n.node())
	}
	for _, h := range d.LastHeartbeats {
		s.LastHeartbeats[h.Node.node()] = parse(t, h.Time)
	}
	return s
}

func parse(t testing.TB, text string) time.Time {
	t.Helper()
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC()
		}
	}
	t.Fatalf("time %q", text)
	return time.Time{}
}

func load(t testing.TB) vectors {
	t.Helper()
	text, err := os.ReadFile("testdata/rendezvous-state-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestVectors(t *testing.T) {
	v := load(t)
	if len(v.States) != 49 || len(v.MustReject) != 18 {
		t.Errorf("%d states and %d to refuse, want 49 and 18", len(v.States), len(v.MustReject))
	}
	olds := 0
	for _, s := range v.States {
		if s.old() {
			olds++
		}
		t.Run(s.ID, func(t *testing.T) {
			got := decodeVector(t, s)
			want := s.Decoded.state(t)
			if d := cmp.Diff(want, got); d != "" {
				t.Fatalf("(-want +got)\n%s", d)
			}
			again, err := pickle.DecodeText(pickle.EncodeText(got))
			if err != nil {
				t.Fatal("of our encoding:", err)
			}
			if d := cmp.Diff(want, again); d != "" {
				t.Errorf("of our encoding (-want +got)\n%s", d)
			}
		})
	}
	if olds != 5 {
		t.Errorf("%d states of 1.13, want 5", olds)
	}
}

// decodeVector decodes a state, which has to be an old one if and only if an old
// agent wrote it.
func decodeVector(t testing.TB, s vector) *state.State {
	t.Helper()
	got, err := pickle.DecodeText([]byte(s.Base64))
	if !s.old() {
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	old, ok := errors.AsType[*pickle.OldStateError](err)
	if !ok || got != nil {
		t.Fatalf("state %v, error %v; want an OldStateError alone", got, err)
	}
	return old.State
}

// TestOldState wants the refusal of an old state to say why it is one.
func TestOldState(t *testing.T) {
	want := map[string]string{
		"1.13.0/single/0":  "nodes have an fqdn, times have no zone, there is no redundancy_list",
		"1.13.0/timeout/1": "there is no redundancy_list",
	}
	for _, s := range load(t).States {
		signs, ok := want[s.ID]
		if !ok {
			continue
		}
		delete(want, s.ID)
		_, err := pickle.DecodeText([]byte(s.Base64))
		text := "the rendezvous state was written by an agent of torch 1.13 or another old release (" + signs +
			"); use muster or the same newer PyTorch on every host"
		if err == nil || err.Error() != text {
			t.Errorf("%s: got  %v\nwant %s", s.ID, err, text)
		}
	}
	if len(want) != 0 {
		t.Errorf("not found: %v", want)
	}
}

// TestAsPython wants the tests' own pickler to write what Python's does, where
// there is no order of sets to differ in.
func TestAsPython(t *testing.T) {
	compared := 0
	for _, s := range load(t).States {
		data, err := base64.StdEncoding.DecodeString(s.Base64)
		if err != nil {
			t.Fatal(err)
		}
		d := s.Decoded
		if s.old() || s.Protocol != 4 || !strings.HasPrefix(s.Torch, "2.") || len(d.Participants) > 1 || len(d.WaitList)+len(d.RedundancyList) > 0 || len(d.LastHeartbeats) > 1 {
			continue
		}
		compared++
		if diff := cmp.Diff(data, asPython(decodeVector(t, s))); diff != "" {
			t.Errorf("%s (-Python +ours)\n%s", s.ID, diff)
		}
	}
	if compared < 3 {
		t.Errorf("only %d compared", compared)
	}
}

// TestSentinel wants "no state yet" to be neither a state nor an error.
func TestSentinel(t *testing.T) {
	if s, err := pickle.DecodeText([]byte(pickle.Sentinel)); s != nil || err != nil {
		t.Errorf("got %v, %v; want neither", s, err)
	}
}
