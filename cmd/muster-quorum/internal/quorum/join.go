package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.uber.org/zap"

	"github.com/muster-run/muster/internal/wait/sleep"
)

// A way is how a member without data comes into its cluster.
type way struct{ state, cluster, token string }

// findWay decides how this member, which has no data, gets into its cluster.
//
// A cluster's ID follows from the members' names and a token, which is the run's.
// So those that start a run each begin the same cluster, at whatever time. One that
// finds its name in a cluster with a history has lost its data, and takes its place
// there under a new ID, which takes a majority. If a majority of all members have
// lost their data, that cluster is dead: they begin another, with a token that
// follows from the dead one's ID, and the others come over when they see it.
func (m *member) findWay(ctx context.Context) (*way, error) {
	var up *notice
	defer func() { up.close() }()
	var since time.Time // when a majority was first seen to have no data
	for {
		all := m.ask(ctx)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		m.learn(all)
		if w := m.begin(all); w != nil {
			return w, nil
		}
		lost := lostCluster(all)
		w, err := m.rejoin(ctx, mostStarted(all))
		if err == nil {
			return w, nil
		}
		up = m.post(up, lost)
		switch {
		case m.countFresh(all, lost) <= (len(m.others)+1)/2:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > m.cfg.TTL.Or(5*time.Second): // nobody leads by the dead cluster's word any more
			return m.bootstrap(successor(m.cfg.RunID, lost)), nil
		}
		m.wait(m.lostData(ctx, err))
		_ = sleep.For(ctx, 250*time.Millisecond)
	}
}

// lostData says why a member without data waits.
func (m *member) lostData(ctx context.Context, err error) string {
	text, majority := m.whoIsMissing(ctx)
	text = "this host's member of the quorum has lost its data, and takes its place again once a majority is up; " + text
	if majority && !is(err, rpctypes.ErrNoLeader) {
		text += "; " + plain(err)
	}
	return text
}

// begin returns the way into a cluster that this member is among the first of, if
// there is such a one: none has begun, or one has, in which it never was by all that the
// others say. One that is busy may not have heard yet what another knows.
func (m *member) begin(all []news) *way {
	if lostCluster(all) == "" {
		return m.bootstrap(m.tokens[0])
	}
	for _, token := range m.tokens {
		cluster, begun, never := m.clusterID(token), false, true
		next := m.clusterID(successor(m.cfg.RunID, cluster))
		for _, n := range all {
			switch {
			case n.roster == nil:
			case n.roster.cluster == next: // the other is dead
				never = false
			case n.roster.cluster == cluster:
				me := n.roster.find(m.me.peerURL())
				begun, never = true, never && me != nil && me.Name != "" && len(me.ClientURLs) == 0
			}
		}
		if begun && never {
			return m.bootstrap(token)
		}
	}
	return nil
}

// learn remembers the tokens of the clusters that may follow those of which the
// others tell.
func (m *member) learn(all []news) {
	for _, n := range all {
		for _, cluster := range n.clusters() {
			if token := successor(m.cfg.RunID, cluster); !slices.Contains(m.tokens, token) {
				m.tokens = append(m.tokens, token)
			}
		}
	}
}

// succeeded returns true if the others have begun the cluster that follows this
// member's.
func (m *member) succeeded(ctx context.Context, mine types.ID) bool {
	next := successor(m.cfg.RunID, mine.String())
	if !slices.Contains(m.tokens, next) {
		m.tokens = append(m.tokens, next)
	}
	return slices.ContainsFunc(m.ask(ctx), func(n news) bool {
		return n.roster != nil && n.roster.cluster == m.clusterID(next)
	})
}

// successor is the token of the cluster that follows a dead one.
func successor(runID, cluster string) string { return "muster/" + runID + "/" + cluster }

// initialCluster is etcd's list of the first members.
func (m *member) initialCluster() string {
	parts := []string{m.me.name + "=" + m.me.peerURL()}
	for _, h := range m.others {
		parts = append(parts, h.name+"="+h.peerURL())
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// bootstrap is the way of all first members of a cluster.
func (m *member) bootstrap(token string) *way {
	return &way{embed.ClusterStateFlagNew, m.initialCluster(), token}
}

// clusterID is the ID of the cluster that begins with a token.
func (m *member) clusterID(token string) string {
	urls, err := types.NewURLsMap(m.initialCluster())
	if err != nil {
		return ""
	}
	c, err := membership.NewClusterFromURLsMap(zap.NewNop(), token, urls)
	if err != nil {
		return ""
	}
	return c.ID().String()
}

// rejoin removes this name's member of before, if it is still there, and adds a
// new one.
func (m *member) rejoin(ctx context.Context, r *roster) (*way, error) {
	if r == nil {
		return nil, errors.New("no member with data answers")
	}
	old := r.find(m.me.peerURL())
	if old != nil && old.Name == "" { // added, and not started: by a process that ended too early
		return m.existing(r.members), nil
	}
	var endpoints []string
	for _, h := range m.others {
		if there := r.find(h.peerURL()); there != nil && len(there.ClientURLs) > 0 {
			endpoints = append(endpoints, h.clientURL())
		}
	}
	cli, err := clientv3.New(clientv3.Config{Endpoints: endpoints, TLS: m.tls,
		DialTimeout: time.Second, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	defer cli.Close()
	// A request that meets a change of etcd's leader is lost without a word.
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), 700*time.Millisecond)
	defer cancel()
	if old != nil {
		if _, err := cli.MemberRemove(ctx, old.ID); err != nil && !is(err, rpctypes.ErrMemberNotFound) {
			return nil, fmt.Errorf("remove the member that was lost: %w", err)
		}
	}
	added, err := cli.MemberAdd(ctx, []string{m.me.peerURL()})
	if err != nil {
		return nil, fmt.Errorf("add this one: %w", err)
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
				_, name, _ = strings.Cut(u, "://")
			}
			parts = append(parts, name+"="+u)
		}
	}
	return &way{embed.ClusterStateFlagExisting, strings.Join(parts, ","), m.tokens[0]}
}
