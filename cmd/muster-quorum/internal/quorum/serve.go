package quorum

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"

	"github.com/muster-run/muster/internal/wait/sleep"
	"github.com/muster-run/muster/internal/wire/admit"
	"github.com/muster-run/muster/internal/wire/pipe"
)

// Serve is a member of a cluster of etcd, one per named host. It reads its
// settings from in, writes reports to out, and returns once in ends: with
// leadership moved to another member if that takes no more than a second.
func Serve(ctx context.Context, in io.Reader, out io.Writer, logger *slog.Logger) error {
	reader, writer := pipe.NewReader(in), pipe.NewWriter(out)
	m := &member{out: writer, logger: logger}
	err := reader.Read(&m.cfg)
	m.tokens = []string{"muster/" + m.cfg.RunID}
	if err != nil {
		err = fmt.Errorf("settings: %w", err)
	} else if m.me, m.others, err = parseHosts(&m.cfg); err == nil {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() { // not waited for: a read of stdin has no end but its own
			defer cancel()
			var c pipe.Command
			for reader.Read(&c) == nil && c.Op != "close" {
			}
			m.ended.Store(c.Op == "close")
		}()
		err = m.run(ctx)
	}
	if err != nil {
		_ = writer.Write(pipe.Report{Error: err.Error()})
	}
	return err
}

// A member is this host's part in the cluster.
type member struct {
	cfg      pipe.Serve
	me       *host
	others   []*host
	out      *pipe.Writer
	logger   *slog.Logger
	ended    atomic.Bool   // the job has; its data is of no use any more
	restarts int           // how often it started over, with no data
	vain     time.Duration // how long its failed starts have taken, of those in a row
	tokens   []string      // of the clusters that this run has had, as far as known

	tls, tlsServer  *tls.Config // for connections to the others, and from them; nil without
	unproven        unproven
	refused, denied admit.Tally // connections
	unposted        admit.Tally // notices

	mu      sync.Mutex // guards waiting
	waiting string     // as last told
}

var (
	errStartOver = errors.New("start over")    // another start, with no data
	errAgain     = errors.New("start in vain") // another start
)

func (m *member) run(ctx context.Context) error {
	m.unproven.most = mostUnproven()
	sweep(os.TempDir(), m.logger)
	cleanTLS, err := m.secure()
	defer cleanTLS()
	if err != nil {
		return err
	}
	wal.SegmentSizeBytes = 4 << 20 // etcd takes two of 64 MB from the disk at once
	dir, cleanUp, err := m.dir()
	if err != nil {
		return err
	}
	defer cleanUp()
	for {
		err := m.live(ctx, dir)
		switch {
		case ctx.Err() != nil && m.ended.Load():
			return os.RemoveAll(dir)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errAgain):
		case errors.Is(err, errStartOver):
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
			if m.restarts > 1 { // who told this member its number had not heard that it was replaced
				_ = sleep.For(ctx, 250*time.Millisecond<<m.restarts)
			}
		default:
			return err
		}
	}
}

// live starts etcd's server and stays until it or ctx ends.
func (m *member) live(ctx context.Context, dir string) error {
	if err := m.freePorts(ctx, portPatience); err != nil {
		return err
	}
	cfg, err := m.embedConfig(dir)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, "member", "wal")); err != nil { // it has no data
		if err := checkRoom(dir); err != nil {
			return err
		}
		way, err := m.findWay(ctx)
		if err != nil {
			return err
		}
		cfg.ClusterState, cfg.InitialCluster, cfg.InitialClusterToken = way.state, way.cluster, way.token
	}
	begun := time.Now()
	if len(m.cfg.Allow) > 0 || m.tls != nil {
		unguard, err := m.guard(cfg)
		if err != nil {
			return m.tryAgain(ctx, begun, err)
		}
		defer unguard()
	}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return m.tryAgain(ctx, begun, fmt.Errorf("start etcd: %w", err))
	}
	m.vain = 0
	err = m.watch(ctx, e)
	switch {
	case ctx.Err() != nil:
		m.leave(e)
	case errors.Is(err, errStartOver):
		halt(e)
	}
	return err
}

// otherwise is what etcd, which has no errors of its own for it, says where the others do not tell
// it what it expects: they are busy, or have not heard yet what this member has.
var otherwise = []string{
	"member count is unequal", "no match found for existing member", "cannot fetch cluster info from peer urls",
	"incompatible with current running cluster", "has already been bootstrapped",
}

// tryAgain returns errAgain for errors that another start may not meet, until starts have taken a
// minute in all: a port is in use, as another agent of this host has started its member since
// freePorts looked; or the others tell something else by then.
func (m *member) tryAgain(ctx context.Context, begun time.Time, err error) error {
	const most, silent = time.Minute, 2 * time.Second
	why := syscall.EADDRINUSE.Error()
	if i := slices.IndexFunc(otherwise, func(text string) bool { return strings.Contains(err.Error(), text) }); i >= 0 {
		why = otherwise[i] // without the list of all members
	} else if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	if m.vain > most {
		return err
	}
	if m.vain > silent {
		m.wait("this host's member of the quorum cannot start yet, and tries again: " + why)
	}
	_ = sleep.For(ctx, 250*time.Millisecond)
	m.vain += time.Since(begun)
	return errAgain
}

// embedConfig is the part of etcd's settings that does not depend on the others.
func (m *member) embedConfig(dir string) (*embed.Config, error) {
	c := embed.NewConfig()
	c.Name = m.me.name
	c.Dir = dir
	c.TickMs = uint(m.cfg.Heartbeat.Or(defaultHeartbeat).Milliseconds())
	c.ElectionMs = uint(m.cfg.Election.Or(defaultElection).Milliseconds())
	c.UnsafeNoFsync = m.cfg.DataDir == "" // a temporary directory is not used after a crash
	c.EnableGRPCGateway = false
	// A lost member is removed and its replacement, which starts at once, added. That
	// never costs a majority; the check would make it wait until the others have been
	// connected for 5 s.
	c.StrictReconfigCheck = false
	c.LogOutputs, c.LogLevel = []string{embed.StdErrLogOutput}, "warn"
	var errs []error
	set := func(to *[]url.URL, address string) {
		u, err := url.Parse(m.me.scheme() + address)
		if err != nil {
			errs = append(errs, err)
			return
		}
		*to = []url.URL{*u}
	}
	set(&c.AdvertiseClientUrls, m.me.client)
	set(&c.AdvertisePeerUrls, m.me.peer)
	set(&c.ListenClientUrls, m.listen(m.me.client))
	set(&c.ListenPeerUrls, m.listen(m.me.peer))
	if m.tls != nil {
		c.PeerTLSInfo, c.TlsMinVersion = transport.TLSInfo{TrustedCAFile: m.cfg.CACert, CertFile: m.cfg.Cert,
			KeyFile: m.cfg.Key}, "TLS1.3"
	}
	return c, errors.Join(errs...)
}

// listen is the address to listen on, for one of this host.
func (m *member) listen(address string) string {
	_, port, _ := net.SplitHostPort(address)
	ip := m.cfg.Bind
	if ip == "" {
		ip = "::"
		if l, err := net.Listen("tcp6", "[::]:0"); err != nil {
			ip = "0.0.0.0" // a host without IPv6
		} else {
			l.Close()
		}
	}
	return net.JoinHostPort(ip, port)
}

// portPatience is how long another program may keep a port before the member gives up.
const portPatience = 10 * time.Second

// freePorts waits until both ports are free: for a while, since this host's member of
// before may be about to end, and as long as another agent of this host has that of the
// same run there, which then serves this one, too.
func (m *member) freePorts(ctx context.Context, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	served := false
	for {
		err := m.tryPorts()
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%w; name another port after the host in --rdzv-endpoint", err)
		}
		holder := m.portHolder(ctx)
		switch {
		case holder == "":
			if !served {
				m.wait("")
				_ = m.out.Write(pipe.Report{Ready: true})
			}
			served, deadline = true, time.Now().Add(patience)
			_ = sleep.For(ctx, time.Second)
			continue
		case time.Now().After(deadline):
			return fmt.Errorf("%w: %s; name another port after the host in --rdzv-endpoint", err, holder)
		case time.Until(deadline) < patience-time.Second: // a member of the run may just be starting
			m.wait(fmt.Sprintf("%v: %s", err, holder))
		}
		_ = sleep.For(ctx, 100*time.Millisecond)
	}
}

// portHolder says who has this member's ports; "" if it is a member of the same run.
func (m *member) portHolder(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	n := askHost(ctx, m.me, m.tls)
	if known := n.clusters(); len(known) > 0 {
		if m.sameRun(known[0]) {
			return ""
		}
		return "a member of another run's quorum has the port"
	}
	if strings.HasPrefix(n.fault, otherToken) {
		return "a member of a quorum has the port, and " + n.fault +
			"; give all agents of the job the same token_file, or certificates of one authority"
	}
	open := *m.me
	open.secure = false
	switch n := askHost(ctx, &open, nil); {
	case m.tls == nil && speaksTLS(ctx, m.me.peer):
		return "the program that has the port speaks TLS: if it is a member of this job's quorum, give this agent its token_file, or cacert, cert and key"
	case m.tls != nil && len(n.clusters()) > 0:
		return "a member of a quorum without a token or certificate has the port, and this agent has one: give all agents of the job the same"
	}
	return "another program has the port"
}

// sameRun reports whether a cluster is this run's: the first, or one that follows from it.
func (m *member) sameRun(cluster string) bool {
	const most = 8 // majorities that have lost their data
	token := "muster/" + m.cfg.RunID
	for range most {
		id := m.clusterID(token)
		if id == cluster {
			return true
		}
		token = successor(m.cfg.RunID, id)
	}
	return false
}

func (m *member) tryPorts() error {
	for _, a := range []string{m.me.client, m.me.peer} {
		l, err := net.Listen("tcp", m.listen(a))
		if err != nil {
			return err
		}
		l.Close()
	}
	return nil
}

// watch says how the member does until it or ctx ends. It looks every second
// whether there is a leader: etcd announces a new one, not that the old one is lost.
func (m *member) watch(ctx context.Context, e *embed.Etcd) error {
	ready := e.Server.ReadyNotify()
	look := time.Tick(time.Second)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-e.Err():
			return m.afterStop(ctx, e, err)
		case <-e.Server.StopNotify():
			return m.afterStop(ctx, e, errors.New("the server stopped"))
		case <-ready:
			ready = nil
			m.wait("")
			_ = m.out.Write(pipe.Report{Ready: true})
		case <-e.Server.LeaderChangedNotify():
			if ready == nil {
				m.wait("")
			}
		case <-look:
			if e.Server.Leader() != 0 {
				continue
			}
			if m.succeeded(ctx, e.Server.Cluster().ID()) {
				return errStartOver
			}
			text, _ := m.whoIsMissing(ctx)
			if e.Server.Leader() == 0 {
				m.wait(text)
			}
		}
	}
}

// afterStop tells a member that was replaced, which the others tell it and which
// stops it, from one that broke.
func (m *member) afterStop(ctx context.Context, e *embed.Etcd, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	const limit = 5 // one is what a replacement takes
	m.restarts++
	select {
	case <-e.Server.StoppingNotify():
		if m.restarts <= limit {
			m.logger.Warn("this host's member of etcd was replaced by another of its name, and starts over", "node", m.me.name)
			return errStartOver
		}
	default:
	}
	return fmt.Errorf("etcd: %w", err)
}

// wait tells the agent for what the member waits, if that is news.
func (m *member) wait(text string) {
	m.mu.Lock()
	news := m.waiting != text
	m.waiting = text
	m.mu.Unlock()
	if news {
		_ = m.out.Write(pipe.Report{Waiting: &text})
	}
}

// whoIsMissing says how many members are up and which are not.
func (m *member) whoIsMissing(ctx context.Context) (text string, majority bool) {
	var missing []string
	for i, n := range m.ask(ctx) {
		if n.fault != "" {
			missing = append(missing, fmt.Sprintf("%s (%s)", m.others[i].name, n.fault))
		}
	}
	n := len(m.others) + 1
	majority = n-len(missing) > n/2
	text = fmt.Sprintf("%d of %d members of the quorum are up", n-len(missing), n)
	switch len(missing) {
	case 0:
		return text, majority
	case 1:
		return text + ": " + missing[0] + " does not answer", majority
	}
	return text + ": " + strings.Join(missing, ", ") + " do not answer", majority
}

// leave hands the leadership on, in a second at most. Etcd's server ends with the process,
// as by a kill, which its data stands: HardStop closes the database while others may still
// be answered, and etcd panics at that.
func (m *member) leave(e *embed.Etcd) {
	if !m.ended.Load() {
		bounded(time.Second, func() { _ = e.Server.TryTransferLeadershipOnShutdown() })
	} else if len(m.others) > 0 {
		// The others are about to stop too: each has to learn first that the run was
		// closed, which the next heartbeat tells its member.
		_ = sleep.For(context.Background(), 3*m.cfg.Heartbeat.Or(defaultHeartbeat))
	}
}

// halt stops a server that another is to follow in this process.
func halt(e *embed.Etcd) {
	bounded(2*time.Second, e.Server.HardStop)
	bounded(50*time.Millisecond, e.Close) // what it still waits for, the connections of others, ends later
}

// bounded waits for work to end, but not longer than limit.
func bounded(limit time.Duration, work func()) {
	done := make(chan struct{})
	go func() { work(); close(done) }()
	select {
	case <-done:
	case <-time.After(limit):
	}
}
