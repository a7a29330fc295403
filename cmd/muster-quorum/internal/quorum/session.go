package quorum

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-run/muster/internal/wait/sleep"
	"github.com/muster-run/muster/internal/wire/pipe"
)

// retry is the pause after a request that failed.
func (b *bridge) retry() time.Duration {
	return min(time.Duration(b.cfg.TTL)/20, 250*time.Millisecond)
}

// callContext bounds one request. A member without a leader has to refuse it
// at once, so that the next try goes to another.
func (b *bridge) callContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(clientv3.WithRequireLeader(ctx), b.cfg.Call.Or(time.Duration(b.cfg.TTL)/4))
}

// connect makes the client. With a user that takes a member that answers.
func (b *bridge) connect(ctx context.Context) {
	for ctx.Err() == nil {
		cli, err := clientv3.New(b.client)
		if err == nil {
			if !b.send(ctx, connected{cli}) {
				cli.Close()
			}
			return
		}
		b.send(ctx, troubled{err})
		_ = sleep.For(ctx, b.retry())
	}
}

// hold has one lease after the other, and lives with it, while the agent is heard.
func (b *bridge) hold(ctx context.Context, cli *clientv3.Client) {
	for ctx.Err() == nil {
		if time.Since(b.heard) > time.Duration(b.cfg.TTL)/2 {
			b.hear(ctx, nil)
			continue
		}
		s, sent, err := b.grant(ctx, cli)
		if err != nil {
			b.send(ctx, troubled{err})
			if b.lookBack(ctx, cli, nil) {
				<-ctx.Done()
			}
			_ = sleep.For(ctx, b.retry())
			continue
		}
		b.events <- granted{s, sent} // also when run is over: it revokes the lease
		if b.live(ctx, cli, s) {
			b.send(ctx, dropped{s}) // before another can lead
			call, done := b.callContext(ctx)
			_, _ = cli.Revoke(call, s.id) // or it runs out
			done()
			_ = sleep.For(ctx, s.ttl/4) // the others have time, see follow
		}
		b.rough = time.Now()
	}
}

// hear waits until the agent is heard, and reports whether it yields, or until a time or the end of ctx.
func (b *bridge) hear(ctx context.Context, until <-chan time.Time) (yields bool) {
	select {
	case op := <-b.beats:
		b.heard = time.Now()
		return op == "yield"
	case <-until:
	case <-ctx.Done():
	}
	return false
}

// grant asks for a lease.
func (b *bridge) grant(ctx context.Context, cli *clientv3.Client) (*session, time.Time, error) {
	ctx, cancel := b.callContext(ctx)
	defer cancel()
	sent := time.Now()
	g, err := cli.Grant(ctx, int64(time.Duration(b.cfg.TTL)/time.Second))
	if err != nil {
		return nil, sent, err
	}
	return &session{id: g.ID, ttl: time.Duration(g.TTL) * time.Second}, sent, nil
}

// live keeps a lease and stands for election until the lease is lost, or the agent yields.
func (b *bridge) live(ctx context.Context, cli *clientv3.Client, s *session) (yields bool) {
	ctx, cancel := context.WithCancel(ctx)
	var follower sync.WaitGroup
	follower.Go(func() {
		if b.follow(ctx, cli, s) {
			b.send(ctx, dropped{s})
			cancel()
		}
	})
	yields = b.keep(ctx, cli, s)
	cancel()
	follower.Wait()
	return yields
}

// keep prolongs a lease whenever the agent is heard, until the servers say that it is lost or the
// agent yields. It may still be good when it has run out by our clock: a new leader of etcd's members
// prolongs all.
func (b *bridge) keep(ctx context.Context, cli *clientv3.Client, s *session) (yields bool) {
	var again <-chan time.Time
	for {
		if yields = b.hear(ctx, again); yields || ctx.Err() != nil {
			return yields
		}
		sent := time.Now()
		call, done := context.WithTimeout(clientv3.WithRequireLeader(ctx), b.cfg.Call.Or(s.ttl/8))
		_, err := cli.KeepAliveOnce(call, s.id)
		done()
		switch {
		case err == nil:
			b.send(ctx, kept{s, sent})
			again = nil
		case is(err, rpctypes.ErrLeaseNotFound):
			b.send(ctx, dropped{s})
			return false
		default:
			b.send(ctx, troubled{err})
			again = time.After(b.retry())
		}
	}
}

// follow stands for election, and watches who won, for as long as ctx. It returns
// true if it finds that the servers do not have the lease.
func (b *bridge) follow(ctx context.Context, cli *clientv3.Client, s *session) (dropped bool) {
	for ctx.Err() == nil {
		// Who led before an outage of etcd, and lost its lease in it, comes first: its
		// round continues, where that of another would begin anew.
		stand := b.last.id == "" || b.last.id == b.cfg.ID || time.Since(b.rough) > s.ttl
		v, err := b.campaign(ctx, cli, s, stand)
		if err == nil && !stand && v.leader == nil && !v.closed {
			_ = sleep.For(ctx, s.ttl/5) // it takes one request, and a pause after one that failed
			v, err = b.campaign(ctx, cli, s, true)
		}
		if err == nil {
			err = b.compare(ctx, cli, v)
		}
		if err == nil {
			b.send(ctx, saw{s, v})
			if v.closed {
				return false
			}
			err = b.watch(ctx, cli, s, v.rev+1)
		}
		switch {
		case is(err, rpctypes.ErrLeaseNotFound):
			return true
		case err != nil && ctx.Err() == nil:
			b.rough = time.Now()
			b.send(ctx, troubled{err})
			if b.lookBack(ctx, cli, s) {
				return false
			}
			_ = sleep.For(ctx, b.retry())
		}
	}
	return false
}

// lookBack asks any one member, as most may be gone for good, whether it knows that the run was
// closed, and tells.
func (b *bridge) lookBack(ctx context.Context, cli *clientv3.Client, s *session) (closed bool) {
	closed, gone := b.askOne(ctx, cli)
	if closed && gone {
		b.send(ctx, removed{})
	}
	if closed {
		b.send(ctx, saw{s, &view{closed: true}})
	}
	return closed
}

// askOne asks any one member whether it knows that the run was closed, and that nobody leads.
// What a member has was settled, though it may not be the newest.
func (b *bridge) askOne(ctx context.Context, cli *clientv3.Client) (closed, gone bool) {
	ask, cancel := context.WithTimeout(ctx, b.retry())
	defer cancel()
	r, err := cli.Get(ask, b.keys.prefix, clientv3.WithPrefix(), clientv3.WithSerializable())
	if err != nil || b.born == 0 {
		return false, false
	}
	gone = r.Header.Revision >= b.last.created
	for _, kv := range r.Kvs {
		switch string(kv.Key) {
		case b.keys.closed:
			closed = kv.ModRevision > b.born
		case b.keys.leader:
			gone = gone && kv.CreateRevision != b.last.created
		}
	}
	return closed, gone
}

// A reign is that of an agent that leads without another in between, by one key or several.
// It ends with the agent's bridge: the agent has given it up then.
type reign struct {
	id, bridge    string
	term, created int64 // the revisions that created its first key, and its last
}

// compare gives the leader of a view the term in which it leads already, if that is so. After an
// error nobody knows yet.
func (b *bridge) compare(ctx context.Context, cli *clientv3.Client, v *view) (err error) {
	if v.leader == nil {
		return nil
	}
	id, created := v.leader.ID, v.leader.Term
	same := b.last.id == id && b.last.created == created
	if !same && b.last.id == id && b.last.bridge == v.bridge {
		if v.goesOn, err = b.alone(ctx, cli, b.last, created); err != nil {
			return err
		}
	}
	if !same && !v.goesOn {
		b.last = reign{id, v.bridge, created, created}
	}
	b.last.created, v.leader.Term = created, b.last.term
	return nil
}

// alone reports whether etcd knows that since a reign, up to a revision, nobody else has led.
func (b *bridge) alone(ctx context.Context, cli *clientv3.Client, last reign, to int64) (bool, error) {
	if to <= last.created {
		return false, nil // a cluster that began again
	}
	ctx, cancel := b.callContext(ctx)
	defer cancel()
	watcher := clientv3.NewWatcher(cli) // see watch
	defer watcher.Close()
	for w := range watcher.Watch(ctx, b.keys.leader, clientv3.WithRev(last.created+1), clientv3.WithFilterDelete()) {
		for _, e := range w.Events {
			var c candidate
			if json.Unmarshal(e.Kv.Value, &c) != nil || c.ID != last.id || c.Bridge != last.bridge {
				return false, nil
			}
			if e.Kv.ModRevision == to {
				return true, nil
			}
		}
		if w.CompactRevision > 0 {
			return false, nil // etcd does not know any more
		}
	}
	return false, cmp.Or(ctx.Err(), errSilentWatch)
}

// campaign creates the leader's key if there is none and it is to stand, and returns
// what there is.
func (b *bridge) campaign(ctx context.Context, cli *clientv3.Client, s *session, stand bool) (*view, error) {
	ctx, cancel := b.callContext(ctx)
	defer cancel()
	me := &pipe.Leader{Addr: b.cfg.Addr, ID: b.cfg.ID}
	value, _ := json.Marshal(candidate{me.Addr, me.ID, b.name}) // texts
	free := clientv3.Compare(clientv3.CreateRevision(b.keys.leader), "=", 0)
	if !stand {
		free = clientv3.Compare(clientv3.CreateRevision(b.keys.leader), "<", 0) // never
	}
	r, err := cli.Txn(ctx).
		If(free, b.open()).
		Then(clientv3.OpPut(b.keys.leader, string(value), clientv3.WithLease(s.id))).
		Else(clientv3.OpGet(b.keys.leader), clientv3.OpGet(b.keys.closed)).
		Commit()
	if err != nil {
		return nil, err
	}
	if b.born == 0 {
		b.born = r.Header.Revision
		if !r.Succeeded {
			return b.campaign(ctx, cli, s, stand) // a run that ended before was another job's
		}
	}
	if r.Succeeded {
		me.Term = r.Header.Revision
		return &view{rev: r.Header.Revision, leader: me, bridge: b.name, lease: s.id}, nil
	}
	v, err := b.readView(r)
	if err != nil || v.leader == nil || v.leader.ID != b.cfg.ID || v.lease == s.id {
		return v, err
	}
	// The key of this agent's bridge before this one.
	term := v.leader.Term
	_, err = cli.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(b.keys.leader), "=", term)).
		Then(clientv3.OpDelete(b.keys.leader)).Commit()
	return &view{rev: v.rev}, err // without a leader: the watch sees the key go
}

// open is that the run was not closed since this bridge first looked.
func (b *bridge) open() clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(b.keys.closed), "<", b.born+1)
}

// candidate is the value of the leader's key.
type candidate struct {
	Addr   string `json:"addr"`
	ID     string `json:"id"`
	Bridge string `json:"bridge"` // unlike any other's, also of one agent
}

func (b *bridge) readView(r *clientv3.TxnResponse) (*view, error) {
	v := &view{rev: r.Header.Revision}
	for _, part := range r.Responses {
		for _, kv := range part.GetResponseRange().GetKvs() {
			if string(kv.Key) == b.keys.closed {
				v.closed = kv.ModRevision > b.born
				continue
			}
			var c candidate
			if err := json.Unmarshal(kv.Value, &c); err != nil || c.Addr == "" {
				return nil, fmt.Errorf("etcd's key %s has the value %.100q, which no agent of muster wrote: delete it",
					b.keys.leader, kv.Value)
			}
			v.leader, v.bridge = &pipe.Leader{Addr: c.Addr, ID: c.ID, Term: kv.CreateRevision}, c.Bridge
			v.lease = clientv3.LeaseID(kv.Lease)
		}
	}
	return v, nil
}

var errSilentWatch = errors.New("a watch of the leader's key was not answered")

// watch returns once the leader's key is gone. It asks now and then whether the
// watch is alive, as a member that is cut off says nothing. Its stream is its own: watches
// of one client share one, and all wait for a member that does not answer the first.
func (b *bridge) watch(ctx context.Context, cli *clientv3.Client, s *session, rev int64) error {
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	defer cancel(nil)
	watcher := clientv3.NewWatcher(cli)
	defer watcher.Close()
	silent := time.AfterFunc(s.ttl/4, func() { cancel(errSilentWatch) })
	changes := watcher.Watch(ctx, b.keys.prefix, clientv3.WithPrefix(), clientv3.WithRev(rev)) // when the member answers
	silent.Stop()
	alive := time.Tick(s.ttl / 2)
	asked := false
	for {
		select {
		case <-alive:
			if asked {
				return errSilentWatch
			}
			asked = true
			if err := watcher.RequestProgress(ctx); err != nil {
				return err
			}
		case w, ok := <-changes:
			if !ok || w.Err() != nil {
				return errors.Join(w.Err(), context.Cause(ctx))
			}
			asked = false
			if over := b.onChanges(ctx, s, w.Events); over {
				return nil
			}
		}
	}
}

// onChanges returns true if there is no leader any more, or no run.
func (b *bridge) onChanges(ctx context.Context, s *session, events []*clientv3.Event) bool {
	for _, e := range events {
		switch string(e.Kv.Key) {
		case b.keys.closed:
			if e.Type == clientv3.EventTypePut {
				b.send(ctx, saw{s, &view{closed: true}})
			}
		case b.keys.leader:
			if e.Type == clientv3.EventTypeDelete {
				b.send(ctx, removed{})
				return true
			}
		}
	}
	return false
}

// end closes the run if the agent says so, and revokes the lease.
func (b *bridge) end(cli *clientv3.Client, op string) error {
	ctx, cancel := context.WithTimeout(context.Background(), b.cfg.End.Or(2*time.Second))
	defer cancel()
	cli.SetEndpoints(b.client.Endpoints...) // nobody looks any more which of them answer
	var err error
	if op == "close" && !b.tell.closed {
		var wrote int64
		if wrote, err = b.closeOrLearn(ctx, cli); err == nil {
			b.write(b.tell.close())
			if wrote > 0 && b.cfg.OwnMembers {
				b.spread(ctx, cli, wrote)
			}
		} else {
			err = fmt.Errorf("tell the others that the run is closed: %s", plain(err))
		}
	}
	if b.tell.session != nil {
		if op == "close" && err == nil && b.cfg.OwnMembers { // nobody waits for the lease, and too few members may be left
			ctx, cancel = context.WithTimeout(ctx, 250*time.Millisecond)
			defer cancel()
		}
		_ = b.insist(ctx, func(ctx context.Context) error {
			_, err := cli.Revoke(ctx, b.tell.session.id)
			if is(err, rpctypes.ErrLeaseNotFound) {
				return nil
			}
			return err
		})
	}
	return err
}

// closeOrLearn closes the run, unless it learns that another agent has: the members of those that
// have closed it go with them, and too few may be left for one more request. It returns the revision
// that it wrote, or 0.
func (b *bridge) closeOrLearn(ctx context.Context, cli *clientv3.Client) (wrote int64, err error) {
	closing, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- b.insist(closing, func(ctx context.Context) (err error) { wrote, err = b.close(ctx, cli); return err })
	}()
	for {
		select {
		case err := <-done:
			return wrote, err
		case <-time.After(b.retry()):
		}
		if closed, _ := b.askOne(closing, cli); closed {
			cancel()
			<-done
			return wrote, nil
		}
	}
}

// close sets the run's key closed, for a while, and takes the leader's away if it is
// ours; it returns the revision that says so. It leaves a job alone that has begun under the ID of
// one that was closed.
func (b *bridge) close(ctx context.Context, cli *clientv3.Client) (int64, error) {
	g, err := cli.Grant(ctx, int64(b.cfg.ClosedFor.Or(10*time.Minute)/time.Second))
	if err != nil {
		return 0, err
	}
	closed := clientv3.OpPut(b.keys.closed, b.cfg.ID, clientv3.WithLease(g.ID))
	var term int64 = -1
	if b.tell.leader != nil && b.tell.leader.Mine {
		term = b.tell.leader.Term
	}
	ours := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(b.keys.leader), "=", term)}
	r, err := cli.Txn(ctx).If(b.open()).
		Then(clientv3.OpTxn(ours, []clientv3.Op{closed, clientv3.OpDelete(b.keys.leader)}, []clientv3.Op{closed})).Commit()
	if err != nil {
		return 0, err
	}
	return r.Header.Revision, nil
}

// spread waits until each member that is up has a revision, for a second at most: this host's own
// goes next, and those that are left may be too few to tell each other.
func (b *bridge) spread(ctx context.Context, cli *clientv3.Client, revision int64) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var all sync.WaitGroup
	for _, endpoint := range b.client.Endpoints {
		all.Go(func() {
			up := ask(ctx, b.client, endpoint) == ""
			for up {
				r, err := cli.Status(ctx, endpoint)
				up = err == nil && r.Header.Revision < revision && sleep.For(ctx, 5*time.Millisecond) == nil
			}
		})
	}
	all.Wait()
}

// insist repeats a request until it succeeds or ctx ends.
func (b *bridge) insist(ctx context.Context, request func(context.Context) error) error {
	for {
		call, cancel := b.callContext(ctx)
		err := request(call)
		cancel()
		if err == nil || sleep.For(ctx, b.retry()) != nil {
			return err
		}
	}
}
