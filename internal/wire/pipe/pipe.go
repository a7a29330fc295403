// Package pipe holds what an agent and muster-quorum say to each other: JSON
// lines over the child's stdin and stdout. The first line in is the settings
// (Elect or Serve), the lines after it are commands, the lines out are reports.
// The end of stdin is the end of the agent, however it ended.
//
// It imports nothing of etcd, so that the agent's side stays light.
package pipe

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"
)

// MaxLine is the longest line that either side takes, in bytes.
const MaxLine = 64 << 10

// Elect is the settings line of "muster-quorum elect".
type Elect struct {
	RunID     string   `json:"run_id"`
	ID        string   `json:"id"`        // of this agent, unlike any other's, the same for each of its bridges
	Addr      string   `json:"addr"`      // where this agent serves if it leads
	Endpoints []string `json:"endpoints"` // host:port or URL of etcd's members

	// OwnMembers says that the agents run etcd's members, each of which ends with its agent.
	OwnMembers bool `json:"own_members,omitzero"`

	// TTL is how long a vanished host stays the leader. Whole seconds; etcd has a
	// minimum of its own (about one and a half of its election timeouts).
	TTL Millis `json:"ttl_ms"`
	// Call bounds one request to etcd. Default a quarter of TTL.
	Call Millis `json:"call_ms,omitzero"`
	// End bounds the last requests: close and revoke. Default 2s.
	End Millis `json:"end_ms,omitzero"`
	// ClosedFor is how long a closed run is remembered. Default 10 minutes.
	ClosedFor Millis `json:"closed_for_ms,omitzero"`

	CACert   string `json:"cacert,omitzero"` // files; any of the three asks for TLS
	Cert     string `json:"cert,omitzero"`
	Key      string `json:"key,omitzero"`
	User     string `json:"user,omitzero"`
	Password string `json:"password,omitzero"`
	// Token, without files, makes members that are muster-quorum's known by what follows
	// from it.
	Token string `json:"token,omitzero"`
}

// Serve is the settings line of "muster-quorum serve".
type Serve struct {
	RunID   string   `json:"run_id"`
	Name    string   `json:"name"`    // this host, as Members has it
	Members []string `json:"members"` // host or host:port; 1, 3 or 5
	// Port is for clients, of members that name none; default 29400. Peers use the next one.
	Port    int    `json:"port,omitzero"`
	Bind    string `json:"bind,omitzero"`     // IP to listen on; default all
	DataDir string `json:"data_dir,omitzero"` // default a temporary directory, removed at the end

	// Allow are the networks from which clients and other members may connect; default all.
	Allow []netip.Prefix `json:"allow,omitempty"`

	// TLS 1.3 with certificates on both ends of all connections: files, all or none; or
	// what follows from a token.
	CACert string `json:"cacert,omitzero"`
	Cert   string `json:"cert,omitzero"`
	Key    string `json:"key,omitzero"`
	Token  string `json:"token,omitzero"`

	Heartbeat Millis `json:"heartbeat_ms,omitzero"` // default 50ms
	Election  Millis `json:"election_ms,omitzero"`  // default 500ms
	// TTL is the agents', after which one that is cut off has stopped to lead. Default 5s.
	TTL Millis `json:"ttl_ms,omitzero"`
}

// Command is a line after the settings. To "elect": close says that the job has
// ended, leave that this agent goes, beat that it is well, and yield the same, but that another
// should lead if there is one that can. Without either for the TTL the agent does not lead. To "serve": close says that the job has ended
// and its data may go too.
type Command struct {
	Op string `json:"op"`
}

// Report is a line from muster-quorum; one of its fields is set.
type Report struct {
	Leader *Leader `json:"leader,omitempty"`
	Gone   int64   `json:"gone,omitempty"`   // the term of the leader that is no more
	Closed bool    `json:"closed,omitempty"` // the run was closed
	// Lease is of this agent, the leader: false is that it has run out for want of an answer.
	Lease   *bool   `json:"lease,omitempty"`
	Waiting *string `json:"waiting,omitempty"` // for what; "" when the wait is over
	Ready   bool    `json:"ready,omitempty"`   // the member serves
	Error   string  `json:"error,omitempty"`   // nothing that another try would mend; the child ends
}

// Leader is who holds the rendezvous.
type Leader struct {
	Addr string `json:"addr"`
	ID   string `json:"id"`
	Mine bool   `json:"mine"`
	Term int64  `json:"term"` // the revision that created the key; a later leader's is greater
}

// Millis is a duration that JSON has in whole milliseconds.
type Millis time.Duration

// MarshalJSON writes whole milliseconds.
func (m Millis) MarshalJSON() ([]byte, error) {
	return json.Marshal(time.Duration(m).Milliseconds())
}

// UnmarshalJSON reads whole milliseconds, up to a day.
func (m *Millis) UnmarshalJSON(b []byte) error {
	var n int64
	if err := json.Unmarshal(b, &n); err != nil {
		return err
	}
	if n < 0 || n > 24*3600*1000 {
		return fmt.Errorf("%d ms: want 0 to a day", n)
	}
	*m = Millis(time.Duration(n) * time.Millisecond)
	return nil
}

// Or returns m, or otherwise if m is zero.
func (m Millis) Or(otherwise time.Duration) time.Duration { return cmp.Or(time.Duration(m), otherwise) }

// A Reader reads lines. It is for one goroutine.
type Reader struct{ s *bufio.Scanner }

// NewReader reads lines of up to MaxLine bytes from r.
func NewReader(r io.Reader) *Reader {
	s := bufio.NewScanner(r)
	s.Buffer(nil, MaxLine)
	return &Reader{s}
}

// Read decodes the next line into v. It returns io.EOF at the end.
func (r *Reader) Read(v any) error {
	if !r.s.Scan() {
		if errors.Is(r.s.Err(), bufio.ErrTooLong) {
			return fmt.Errorf("a line of more than %d bytes", MaxLine)
		}
		if r.s.Err() != nil {
			return r.s.Err()
		}
		return io.EOF
	}
	if err := json.Unmarshal(r.s.Bytes(), v); err != nil {
		return fmt.Errorf("line %.200q: %w", r.s.Text(), err)
	}
	return nil
}

// A Writer writes lines. It may be used concurrently.
type Writer struct {
	mu sync.Mutex // one line at a time on to
	to *json.Encoder
}

// NewWriter writes lines to w.
func NewWriter(w io.Writer) *Writer { return &Writer{to: json.NewEncoder(w)} }

// Write encodes v as one line, in one write.
func (w *Writer) Write(v any) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Encode(v)
}
