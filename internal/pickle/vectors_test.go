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

	"github.com/muster-run/muster/internal/pickle"
	"github.com/muster-run/muster/rendezvous"
)

type vectors struct {
	States []struct {
		ID, Torch, Base64 string
		Decoded           decoded
	}
	MustReject []struct{ ID, Base64, Why string } `json:"must_reject"`
}

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

func (n node) node() rendezvous.Node {
	return rendezvous.Node{Addr: n.Addr + n.FQDN, PID: n.PID, LocalID: n.LocalID}
}

func (d decoded) state(t *testing.T) *rendezvous.State {
	t.Helper()
	s := rendezvous.NewState()
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

func parse(t *testing.T, text string) time.Time {
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
	for _, s := range v.States {
		t.Run(s.ID, func(t *testing.T) {
			got, err := pickle.DecodeText([]byte(s.Base64))
			if old, ok := errors.AsType[*pickle.OldStateError](err); ok && strings.HasPrefix(s.Torch, "1.") {
				got, err = old.State, nil
			}
			if err != nil {
				t.Fatal(err)
			}
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
	for _, s := range v.MustReject {
		t.Run(s.ID, func(t *testing.T) {
			got, err := pickle.DecodeText([]byte(s.Base64))
			if err == nil {
				t.Errorf("%s: decoded as %+v", s.Why, got)
			}
			t.Log(err)
		})
	}
}

func FuzzDecode(f *testing.F) {
	v := load(f)
	for _, s := range v.States {
		data, err := base64.StdEncoding.DecodeString(s.Base64)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, s := range v.MustReject {
		data, _ := base64.StdEncoding.DecodeString(s.Base64)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := pickle.Decode(data)
		if err != nil {
			return
		}
		again, err := pickle.Decode(pickle.Encode(s))
		if err != nil {
			t.Fatalf("of our encoding of %+v: %v", s, err)
		}
		if d := cmp.Diff(s, again); d != "" {
			t.Errorf("(-first +again)\n%s", d)
		}
	})
}
