package quorum

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// A way is how a member without data comes into its cluster.
type way struct{ state, cluster, token string }

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

// bootstrap is the way of all members of a new cluster, at whatever time each starts.
func (m *member) bootstrap() *way {
	parts := []string{m.me.name + "=" + m.me.peerURL()}
	for _, h := range m.others {
		parts = append(parts, h.name+"="+h.peerURL())
	}
	slices.Sort(parts)
	return &way{embed.ClusterStateFlagNew, strings.Join(parts, ","), "muster/" + m.cfg.RunID}
}

// findWay asks the others: a cluster that had a member of this name, whose data is
// lost, takes it in under a new ID.
func (m *member) findWay(ctx context.Context) (*way, error) {
	for {
		r := m.askRosters(ctx)
		if r == nil {
			return m.bootstrap(), ctx.Err()
		}
		old := r.find(m.me.peerURL())
		if old != nil && old.Name != "" && len(old.ClientURLs) == 0 {
			return m.bootstrap(), ctx.Err() // one of the first members, not yet started
		}
		w, err := m.rejoin(ctx, r, old)
		if err == nil {
			return w, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		m.wait(fmt.Sprintf("a cluster runs without this host's data; to take its place there: %s", plain(err)))
		pause(ctx, 250*time.Millisecond)
	}
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

// rejoin removes this name's member of before, if it is still there, and adds a
// new one.
func (m *member) rejoin(ctx context.Context, r *roster, old *rosterMember) (*way, error) {
	var endpoints []string
	for _, h := range m.others {
		if there := r.find(h.peerURL()); there != nil && len(there.ClientURLs) > 0 {
			endpoints = append(endpoints, h.clientURL())
		}
	}
	cli, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: time.Second, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	defer cli.Close()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if old != nil && old.Name == "" { // added, and not started: by a process that ended too early
		return m.existing(r.members), nil
	}
	if old != nil {
		if _, err := cli.MemberRemove(ctx, old.ID); err != nil {
			return nil, fmt.Errorf("remove the member that was lost: %s", plain(err))
		}
	}
	added, err := cli.MemberAdd(ctx, []string{m.me.peerURL()})
	if err != nil {
		return nil, fmt.Errorf("add this one: %s", plain(err))
	}
	var members []rosterMember
	for _, a := range added.Members {
		members = append(members, rosterMember{Name: a.Name, PeerURLs: a.PeerURLs})
	}
	return m.existing(members), nil
}

// existing is the way into a cluster that runs and has this member in its list.
func (m *member) existing(members []rosterMember) *way {
	var parts []string
	for _, r := range members {
		for _, u := range r.PeerURLs {
			name := r.Name
			switch {
			case u == m.me.peerURL():
				name = m.me.name
			case name == "":
				name = strings.TrimPrefix(u, "http://")
			}
			parts = append(parts, name+"="+u)
		}
	}
	return &way{embed.ClusterStateFlagExisting, strings.Join(parts, ","), "muster/" + m.cfg.RunID}
}

// askRosters asks all others at once, and returns the answer that has most members
// started; nil if none answers.
func (m *member) askRosters(ctx context.Context) *roster {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	rosters := make([]*roster, len(m.others))
	var asking sync.WaitGroup
	for i, h := range m.others {
		asking.Go(func() { rosters[i] = askRoster(ctx, h) })
	}
	asking.Wait()
	var best *roster
	for _, r := range rosters {
		if r != nil && (best == nil || r.started() > best.started()) {
			best = r
		}
	}
	return best
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

// askRoster asks one member for its list; nil if there is no answer.
func askRoster(ctx context.Context, h *host) *roster {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.peerURL()+"/members", nil)
	if err != nil {
		return nil
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	r := &roster{cluster: resp.Header.Get("X-Etcd-Cluster-ID")}
	if resp.StatusCode != http.StatusOK || r.cluster == "" {
		return nil
	}
	if json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&r.members) != nil {
		return nil
	}
	return r
}
