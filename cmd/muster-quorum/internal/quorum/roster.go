package quorum

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/muster-run/muster/internal/wait/parallel"
)

// news is what another host answers: its member's list, or that it has no data
// either; neither if it does not answer.
type news struct {
	roster *roster
	fresh  string // the ID of the cluster to which its data belonged
	fault  string // why it is neither
}

// A roster is what a member says about its cluster.
type roster struct {
	cluster string // its ID
	members []rosterMember
}

// rosterMember is etcd's own JSON of a member.
type rosterMember struct {
	ID         uint64   `json:"id"`
	Name       string   `json:"name"`       // empty until one that was added has started
	PeerURLs   []string `json:"peerURLs"`   // where it is
	ClientURLs []string `json:"clientURLs"` // empty until it has started and met the others
}

func (n *news) clusters() []string {
	var out []string
	if n.roster != nil {
		out = append(out, n.roster.cluster)
	}
	if n.fresh != "" {
		out = append(out, n.fresh)
	}
	return out
}

// find returns the member at a peer URL, or nil.
func (r *roster) find(peerURL string) *rosterMember {
	for i := range r.members {
		if slices.Contains(r.members[i].PeerURLs, peerURL) {
			return &r.members[i]
		}
	}
	return nil
}

func (r *roster) started() int {
	n := 0
	for _, m := range r.members {
		if len(m.ClientURLs) > 0 {
			n++
		}
	}
	return n
}

// mostStarted is the list with the longest history, or nil.
func mostStarted(all []news) *roster {
	var best *roster
	for _, n := range all {
		if n.roster != nil && (best == nil || n.roster.started() > best.started()) {
			best = n.roster
		}
	}
	return best
}

// lostCluster is the ID of the cluster with the longest history that the others
// know, or "".
func lostCluster(all []news) string {
	if r := mostStarted(all); r != nil {
		return r.cluster
	}
	for _, n := range all {
		if n.fresh != "" {
			return n.fresh
		}
	}
	return ""
}

// countFresh counts the members that have lost their data of a cluster, this one
// included.
func (m *member) countFresh(all []news, cluster string) int {
	count := 1
	for _, n := range all {
		if n.fresh == cluster {
			count++
		}
	}
	return count
}

// ask asks all others at once.
func (m *member) ask(ctx context.Context) []news {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	n := len(m.others)
	return parallel.Map(n, n, func(i int) news { return askHost(ctx, m.others[i], m.tls) })
}

const (
	clusterHeader = "X-Etcd-Cluster-Id"
	freshHeader   = "X-Muster-Lost-Cluster-Id"
)

// askHost asks one host for its member's list. A host without data gives the
// answer of a notice.
func askHost(ctx context.Context, h *host, secure *tls.Config) news {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: secure}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.peerURL()+"/members", nil)
	if err != nil {
		return news{fault: err.Error()}
	}
	resp, err := client.Do(req)
	if err != nil {
		return news{fault: dialFault(err)}
	}
	defer resp.Body.Close()
	if fresh := resp.Header.Get(freshHeader); resp.StatusCode == http.StatusServiceUnavailable && fresh != "" {
		return news{fresh: fresh}
	}
	r := &roster{cluster: resp.Header.Get(clusterHeader)}
	if resp.StatusCode != http.StatusOK || r.cluster == "" ||
		json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&r.members) != nil {
		return news{fault: "another program has the port"}
	}
	return news{roster: r}
}

// A notice answers, where the member will be, that there is none without data yet.
type notice struct {
	lost   string // the cluster to which the data belonged
	server *http.Server
	done   chan struct{}
}

// post puts a notice up in place of the one that is; it returns nil if it cannot.
func (m *member) post(up *notice, lost string) *notice {
	if up != nil && up.lost == lost {
		return up
	}
	up.close()
	l, err := m.open(m.me.peer)
	if err != nil {
		m.unposted.Warn(m.logger, "cannot tell the others that this host's member has lost its data", "times", "error", err)
		return nil
	}
	n := &notice{lost: lost, done: make(chan struct{})}
	n.server = &http.Server{ReadTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(freshHeader, lost)
			w.WriteHeader(http.StatusServiceUnavailable)
		})}
	go func() {
		defer close(n.done)
		if err := n.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			m.logger.Warn("cannot tell the others that this host's member has lost its data", "error", err)
		}
	}()
	return n
}

// close takes a notice down.
func (n *notice) close() {
	if n == nil {
		return
	}
	_ = n.server.Close()
	<-n.done
}
