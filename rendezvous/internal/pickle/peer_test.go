package pickle_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/pypeer"
	"github.com/muster-run/muster/rendezvous/internal/pickle"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

type peerCase struct {
	ID     string       `json:"id"`
	Ours   []byte       `json:"ours"`
	Theirs []byte       `json:"theirs"`
	want   *state.State // what both say
	beyond bool         // more than Decode accepts
}

type peerResult struct {
	Error string
	State decoded
	Back  [][]byte
}

// TestPeer has PyTorch load our encoding of every state, compare it with what it
// loads from the original, and encode it again, which we then decode.
func TestPeer(t *testing.T) {
	cases := peerCases(t)
	for i, got := range judge(t, cases) {
		c := cases[i]
		t.Run(c.ID, func(t *testing.T) {
			if got.Error != "" {
				t.Fatal(got.Error)
			}
			if d := cmp.Diff(c.want, got.State.state(t)); d != "" {
				t.Errorf("Python's view (-want +got)\n%s", d)
			}
			if len(got.Back) != 4 {
				t.Fatalf("%d pickles of Python's, want 4", len(got.Back))
			}
			for p, data := range got.Back {
				back, err := pickle.Decode(data)
				if c.beyond {
					if err == nil {
						t.Errorf("Python's pickle of protocol %d decodes as %+v", p+2, back)
					}
					continue
				}
				if err != nil {
					t.Fatalf("Python's pickle of protocol %d: %v", p+2, err)
				}
				if d := cmp.Diff(c.want, back); d != "" {
					t.Errorf("Python's pickle of protocol %d (-want +got)\n%s", p+2, d)
				}
			}
		})
	}
}

func peerCases(t *testing.T) (cases []peerCase) {
	add := func(id string, s *state.State, theirs []byte) {
		cases = append(cases, peerCase{ID: id, Ours: pickle.Encode(s), Theirs: theirs, want: s})
	}
	for _, v := range load(t).States {
		theirs, err := base64.StdEncoding.DecodeString(v.Base64)
		if err != nil {
			t.Fatal(err)
		}
		if v.old() {
			theirs = nil // today's classes cannot compare them
		}
		add(v.ID, decodeVector(t, v), theirs)
	}
	for _, a := range append(unusual(), memos()...) {
		theirs := []byte(a.data)
		if a.want.Deadline.Equal(time.Time{}.Add(time.Microsecond)) {
			theirs = nil // Go's zero time means no deadline: we differ on purpose
		}
		add(a.name, a.want, theirs)
	}
	for _, n := range []int{90, 1001, 5000} {
		add(fmt.Sprint(n, " nodes"), many(n), asPython(many(n)))
	}
	for i, s := range extremes() {
		add(fmt.Sprint("extreme ", i), s, nil)
	}
	s, want := beyond()
	return append(cases, peerCase{ID: "beyond", Ours: pickle.Encode(s), want: want, beyond: true})
}

// extremes are states at the limits of what both sides can read.
func extremes() []*state.State {
	early := time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC)
	late := time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)
	states := []*state.State{state.NewState()}
	for _, n := range []int{0, 1, math.MaxInt8, 1 << 7, math.MaxUint8, 1 << 8, math.MaxInt16, 1 << 15, math.MaxUint16, 1 << 16, math.MaxInt32, -1, math.MinInt8, math.MinInt16, math.MinInt32} {
		s := state.NewState()
		s.Round, s.Deadline = n, late
		node := state.Node{Addr: "bücher.example", PID: n, LocalID: n}
		s.Participants[node] = n
		s.RedundancyList.Add(state.Node{})
		s.WaitList.Add(state.Node{Addr: "fe80::1%eth0", PID: 1, LocalID: 2})
		s.LastHeartbeats[node] = early
		s.LastHeartbeats[state.Node{Addr: "line\nbreak\x00\U0001f600"}] = late
		states = append(states, s)
	}
	return states
}

// judge asks testdata/peer.py about all cases at once.
func judge(t *testing.T, cases []peerCase) []peerResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	stdin, err := json.Marshal(cases)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, pypeer.Python(t), "testdata/peer.py")
	// Unbuffered, Python loses what a signal keeps a long write from taking.
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "PYTHONUNBUFFERED=")
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("peer.py: %v\n%s", err, &stderr)
	}
	out = bytes.TrimSpace(out)
	var results []peerResult
	if err := json.Unmarshal(out[bytes.LastIndexByte(out, '\n')+1:], &results); err != nil {
		t.Fatalf("peer.py: %v in %.200q", err, out)
	}
	if len(results) != len(cases) {
		t.Fatalf("peer.py: %d results for %d cases", len(results), len(cases))
	}
	return results
}

// beyond is a state with what Decode refuses or Python could not load, and what
// Python makes of our encoding.
func beyond() (s, want *state.State) {
	s, want = state.NewState(), state.NewState()
	s.Round = 1 << 40
	s.Deadline = time.Date(12000, 1, 1, 0, 0, 0, 0, time.FixedZone("", 3600))
	s.WaitList.Add(state.Node{Addr: "h\xff\xfe", PID: 1})
	s.LastHeartbeats[state.Node{Addr: "a", PID: -1 << 62}] = time.Date(-5, 1, 1, 0, 0, 0, 0, time.UTC)
	s.LastHeartbeats[state.Node{Addr: "b"}] = time.Date(2026, 7, 1, 1, 30, 0, 1999, time.FixedZone("", 7200))

	want.Round = s.Round
	want.Deadline = time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)
	want.WaitList.Add(state.Node{Addr: "h\ufffd", PID: 1})
	want.LastHeartbeats[state.Node{Addr: "a", PID: -1 << 62}] = time.Time{}
	want.LastHeartbeats[state.Node{Addr: "b"}] = time.Date(2026, 6, 30, 23, 30, 0, 1000, time.UTC)
	return s, want
}
