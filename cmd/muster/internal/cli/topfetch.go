package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/http10"
)

const (
	// fetchTimeout is how long an agent has to answer.
	fetchTimeout = 5 * time.Second
	// maxState bounds an answer: a State with all that it may have is smaller.
	maxState = 48 << 20
)

// fetchState asks the agent at an address, as --health-addr has it, for its State.
func fetchState(ctx context.Context, addr string) (*health.State, error) {
	network, address, err := health.ParseAddr(addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, fetchTimeout, fmt.Errorf("no answer within %v", fetchTimeout))
	defer cancel()
	body, err := get(ctx, network, address, "/v1/state")
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("ask the agent at %s: %w", addr, err)
	}
	state := new(health.State)
	err = json.Unmarshal(body, state)
	if err == nil && state.Version < 1 {
		err = errors.New("it has no version")
	}
	if err != nil {
		return nil, fmt.Errorf("ask the agent at %s: the answer is no state of a job: %w", addr, err)
	}
	if state.Version > health.StateVersion {
		return nil, fmt.Errorf("the agent at %s is a newer muster (state version %d, this one knows %d); use its own `muster top`", addr, state.Version, health.StateVersion)
	}
	return state, nil
}

// get returns the body of what is at path.
func get(ctx context.Context, network, address, path string) ([]byte, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		if e, ok := errors.AsType[*net.OpError](err); ok {
			err = e.Err
		}
		return nil, err
	}
	defer conn.Close()
	body, err := http10.Ask(ctx, conn, "GET", path, maxState)
	if _, ok := errors.AsType[*http10.HeadError](err); ok {
		err = fmt.Errorf("%w; is this the address of --health-addr?", err)
	}
	return body, err
}
