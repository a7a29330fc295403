package quorum

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-run/muster/internal/wire/pipe"
)

// Elect is an agent's bridge to a cluster of etcd. It reads its settings and then
// commands from in, writes reports to out, and returns once in ends or a command
// asks it to, with its lease revoked if a member answers. It returns an error,
// already reported, when another try would not mend it.
func Elect(ctx context.Context, in io.Reader, out io.Writer, logger *slog.Logger) error {
	reader, writer := pipe.NewReader(in), pipe.NewWriter(out)
	b, err := newBridge(reader, writer, logger)
	if err == nil {
		err = b.run(ctx, reader)
	}
	if err != nil {
		_ = writer.Write(pipe.Report{Error: err.Error()})
	}
	return err
}

// A bridge is one agent's part in the election. Its goroutine run owns everything
// that the agent is told; the others send it events.
type bridge struct {
	cfg    pipe.Elect
	name   string // unlike any other's
	keys   keys
	client clientv3.Config
	out    *pipe.Writer
	logger *slog.Logger
	events chan any
	beats  chan string // has room for one: what the agent said last, beat or yield
	born   int64       // the revision at which it first looked; campaign sets it, and end reads it when that is over

	// of hold, and of follow while that runs:
	last  reign     // who led when it last looked
	rough time.Time // when a request last failed, or the lease was lost
	heard time.Time // when the agent last was

	// of run:
	tell     teller // what the agent is told
	failures int    // requests in a row
	probing  bool
}

type keys struct{ prefix, leader, closed string }

func newKeys(runID string) keys {
	prefix := "/muster/" + url.PathEscape(runID) + "/"
	return keys{prefix: prefix, leader: prefix + "leader", closed: prefix + "closed"}
}

// What the goroutines of a bridge send to run.
type (
	connected struct{ cli *clientv3.Client }
	granted   struct {
		s    *session
		sent time.Time
	}
	kept    granted
	dropped struct{ s *session } // the servers do not have the lease any more
	saw     struct {
		s *session
		v *view
	}
	removed  struct{}            // the leader's key
	troubled struct{ err error } // a request failed
	probed   struct{ text string }
	command  struct{ op string } // "" is the end of stdin
)

func newBridge(in *pipe.Reader, out *pipe.Writer, logger *slog.Logger) (*bridge, error) {
	b := &bridge{name: rand.Text(), out: out, logger: logger, events: make(chan any), beats: make(chan string, 1), heard: time.Now()}
	if err := in.Read(&b.cfg); err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	if err := checkElect(&b.cfg); err != nil {
		return nil, err
	}
	b.keys = newKeys(b.cfg.RunID)
	var err error
	b.client, err = clientConfig(&b.cfg)
	return b, err
}

func checkElect(cfg *pipe.Elect) error {
	var errs problems
	errs.addIf(cfg.RunID == "", "run_id is empty")
	errs.addIf(cfg.ID == "", "id is empty")
	errs.addIf(cfg.Addr == "", "addr is empty: where would this agent serve if it led?")
	errs.addIf(len(cfg.Endpoints) == 0, "endpoints is empty: name etcd's members")
	ttl := time.Duration(cfg.TTL)
	errs.addIf(ttl < time.Second || ttl%time.Second != 0, "ttl_ms=%d: want whole seconds, 1000 or more", ttl.Milliseconds())
	errs.addIf((cfg.Cert == "") != (cfg.Key == ""), "cert and key go together")
	errs.addIf((cfg.User == "") != (cfg.Password == ""), "user and password go together")
	return errors.Join(errs...)
}

// run tells the agent what happens until it or the bridge ends.
func (b *bridge) run(ctx context.Context, in *pipe.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	go b.read(ctx, in) // not waited for: a read of stdin has no end but its own
	work.Go(func() { b.connect(ctx) })
	expiry := time.NewTimer(0)
	var cli *clientv3.Client
	var op string
	var err error
	for err == nil && op == "" {
		var reports []pipe.Report
		select {
		case <-ctx.Done():
			op = "leave"
		case <-expiry.C:
			if b.tell.session != nil && !time.Now().Before(b.tell.until) {
				reports = b.tell.doubt(true)
			}
		case e := <-b.events:
			switch e := e.(type) {
			case connected:
				cli = e.cli
				work.Go(func() { b.hold(ctx, cli) })
			case command:
				if op = e.op; op == "beat" || op == "yield" {
					select {
					case <-b.beats:
					default:
					}
					b.beats <- op
					op = ""
				}
			case probed:
				reports = b.onProbed(e)
			case troubled:
				err = b.onTrouble(ctx, &work, cli, e.err)
			default:
				reports = b.onNews(e)
			}
		}
		if b.tell.session != nil && !b.tell.doubted {
			expiry.Reset(time.Until(b.tell.until))
		}
		if !b.write(reports) {
			op = "leave"
		}
	}
	cancel()
	b.drain(&work)
	if cli == nil {
		if err != nil || op != "close" {
			return err
		}
		if cli, err = clientv3.New(b.client); err != nil {
			return fmt.Errorf("close the run: %s", plain(err))
		}
	}
	defer cli.Close()
	return errors.Join(err, b.end(cli, op))
}

// write tells the agent; false means that it is not there any more.
func (b *bridge) write(reports []pipe.Report) bool {
	for _, r := range reports {
		if b.out.Write(r) != nil {
			return false
		}
	}
	return true
}

// drain waits for the goroutines, with ears for what they still send.
func (b *bridge) drain(work *sync.WaitGroup) {
	done := make(chan struct{})
	go func() { work.Wait(); close(done) }()
	for {
		select {
		case <-done:
			return
		case e := <-b.events:
			if g, ok := e.(granted); ok {
				b.tell.granted(g.s, g.sent) // to be revoked
			}
		}
	}
}

// onNews takes an event that shows that etcd answers.
func (b *bridge) onNews(e any) []pipe.Report {
	b.failures = 0
	reports := b.tell.wait("")
	switch e := e.(type) {
	case granted:
		reports = append(reports, b.tell.lost(b.tell.session)...)
		b.tell.granted(e.s, e.sent)
	case kept:
		reports = append(reports, b.tell.kept(e.s, e.sent)...)
	case dropped:
		reports = append(reports, b.tell.lost(e.s)...)
	case saw:
		reports = append(reports, b.tell.saw(e.s, e.v)...)
	case removed:
		reports = append(reports, b.tell.removed()...)
	}
	return reports
}

// onTrouble finds out why a request failed, and which members the client, which takes turns, is to ask from now on.
func (b *bridge) onTrouble(ctx context.Context, work *sync.WaitGroup, cli *clientv3.Client, err error) error {
	if text := fatal(err, &b.cfg); text != "" {
		return errors.New(text)
	}
	b.failures++
	b.logger.Debug("request to etcd", "error", err, "failures", b.failures)
	if b.probing {
		return nil
	}
	b.probing = true
	work.Go(func() {
		text, use := probe(ctx, &b.cfg, b.client)
		if cli != nil {
			cli.SetEndpoints(use...)
		}
		if text == "" {
			text = "etcd answers, but not this run's requests: " + plain(err)
		}
		b.send(ctx, probed{text})
	})
	return nil
}

// onProbed says why the bridge waits, if it still does.
func (b *bridge) onProbed(e probed) []pipe.Report {
	b.probing = false
	const patience = 2 // one failed request is what a member that goes down costs
	if b.failures == 0 || b.tell.session != nil && b.failures < patience {
		return nil
	}
	return b.tell.wait(e.text)
}

// send gives run an event; false means that run is over.
func (b *bridge) send(ctx context.Context, e any) bool {
	select {
	case b.events <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

// read passes the agent's commands on.
func (b *bridge) read(ctx context.Context, in *pipe.Reader) {
	for {
		var c pipe.Command
		if err := in.Read(&c); err != nil {
			if !errors.Is(err, io.EOF) {
				b.logger.Error("cannot read the agent's command; leaving the election", "error", err)
			}
			c.Op = "leave"
		}
		if !b.send(ctx, command{c.Op}) || c.Op == "leave" {
			return
		}
	}
}

// fatal explains an error of etcd that no other try mends, or returns "".
func fatal(err error, cfg *pipe.Elect) string {
	prefix := newKeys(cfg.RunID).prefix
	switch {
	case is(err, rpctypes.ErrAuthFailed):
		return fmt.Sprintf("etcd refuses user %q: user or password is wrong", cfg.User)
	case is(err, rpctypes.ErrUserEmpty), is(err, rpctypes.ErrPermissionDenied) && cfg.User == "":
		return fmt.Sprintf(
			"etcd wants a user and a password: its authentication is enabled, and without them this agent may not read and write %s",
			prefix)
	case is(err, rpctypes.ErrPermissionDenied):
		return fmt.Sprintf("etcd's user %q may not read and write %s: give its role readwrite on the prefix /muster/",
			cfg.User, prefix)
	}
	return ""
}

// is compares an error with one of etcd's, by the code and text that the wire has.
func is(err, target error) bool {
	return errors.Is(err, target) || err != nil && rpctypes.Error(err) == target
}

// plain is an error without gRPC's wrapping, on one line.
func plain(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, "desc = "); i >= 0 {
		text = strings.Trim(text[i+len("desc = "):], `"`)
	}
	return strings.Join(strings.Fields(text), " ")
}
