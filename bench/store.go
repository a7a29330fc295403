//go:build linux

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// measureStore loads `muster store`, PyTorch's own server (libuv) and a Go
// echo server with one client, in turn.
func measureStore(l *lab) ([]*row, error) {
	trip := &row{What: "store: one client's round trip (add)", Chart: "store: round trip", GoalText: "no slower"}
	torch := &row{What: "store: the same with PyTorch's Python client", Chart: "store: round trip, Python client", GoalText: "no slower"}
	add8 := &row{What: "store: add/s over 8 connections", Chart: "store: add/s, 8 connections", Unit: perSecond, GoalText: "no slower"}
	add64 := &row{What: "store: add/s over 64 connections", Chart: "store: add/s, 64 connections", Unit: perSecond, GoalText: "no slower"}
	pipe := &row{What: "store: pipelined requests/s, 8 connections × 32 in flight", Chart: "store: pipelined requests/s", Unit: perSecond, Goal: 1.5e6}
	connect := &row{What: "store: 1,000 clients connect", Chart: "store: 1,000 clients connect", Goal: 0.1}
	barrier := &row{What: "store: then each adds and waits for the last one", Chart: "store: 1,000 clients add and wait", Goal: 0.014}
	unnamed := &row{What: "store: 20 clients connect one after the other from an address without a name"}
	empty := &row{What: "store: the empty server's memory", Unit: size}
	full := &row{What: "store: memory with 100,000 keys of 1 KiB", Chart: "store: memory, 100,000 × 1 KiB", Unit: size, Goal: 130 << 20}

	var servers []*server
	for _, c := range l.contenders() {
		s, err := l.serve(c)
		if err != nil {
			return nil, err
		}
		servers = append(servers, s)
	}
	stretch := 600 * time.Millisecond
	if l.quick {
		stretch = 200 * time.Millisecond
	}
	for round := range l.n(5, 2) {
		for _, s := range servers {
			fail := func(what string, err error) ([]*row, error) {
				return nil, fmt.Errorf("%s: %s: %w: %s", s.name, what, err, s.job.console())
			}
			took, err := s.roundTrip(stretch)
			if err != nil {
				return fail("round trip", err)
			}
			trip.add(s.name, took)
			for _, load := range []struct {
				r            *row
				conns, depth int
			}{{add8, 8, 1}, {add64, 64, 1}, {pipe, 8, 32}} {
				rate, err := s.rate(load.conns, load.depth, stretch)
				if err != nil {
					return fail(load.r.What, err)
				}
				load.r.add(s.name, rate)
			}
			c, b, err := s.thousand(round)
			if err != nil {
				return fail("1,000 clients", err)
			}
			connect.add(s.name, c)
			barrier.add(s.name, b)
			if round == 0 {
				if took, err = s.unnamed(20); err != nil {
					return fail(unnamed.What, err)
				}
				unnamed.add(s.name, took)
			}
			if l.python != "" && s.name != floor && round < 3 {
				text, err := l.torchClient(s, fmt.Sprint(stretch.Seconds()))
				if err != nil {
					return fail("Python client", err)
				}
				var got struct {
					Median float64 `json:"median_ns"`
				}
				if err := json.Unmarshal(text, &got); err != nil {
					return fail("Python client", err)
				}
				torch.add(s.name, got.Median/1e9)
			}
		}
	}
	for _, s := range servers {
		if err := s.stop(); err != nil {
			return nil, err
		}
	}
	for _, c := range l.contenders() {
		if c == floor {
			continue
		}
		before, after, err := l.storeMemory(c)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c, err)
		}
		empty.add(c, before)
		full.add(c, after)
	}
	trip.Note = "servers: `muster store`, PyTorch's libuv server, a Go TCP echo server; one raw client in Go for all, on the same cores"
	unnamed.Note = "from 127.0.0.3, which no hosts file names: a server that looks up its clients' names waits for the resolver"
	return []*row{trip, torch, add8, add64, pipe, connect, barrier, unnamed, empty, full}, nil
}

// roundTrip is the median time of an ADD.
func (s *server) roundTrip(stretch time.Duration) (float64, error) {
	c, err := s.dial()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	request := addRequest(nil, "/trip", 1)
	var took []float64
	for end := now() + int64(stretch); ; {
		begin := now()
		if begin >= end {
			return quantile(took, 0.5), nil
		}
		if err := c.exchange(request, 8); err != nil {
			return 0, err
		}
		took = append(took, float64(now()-begin)/1e9)
	}
}

// rate is how many ADDs a second conns connections get through, each with
// depth of them under way.
func (s *server) rate(conns, depth int, stretch time.Duration) (float64, error) {
	clients, done, err := s.dialAll(conns)
	if err != nil {
		return 0, err
	}
	defer done()
	begin := now()
	end := begin + int64(stretch)
	counts := make([]int, conns)
	var g errgroup.Group
	for i, c := range clients {
		g.Go(func() error {
			var request []byte
			for range depth {
				request = addRequest(request, fmt.Sprintf("/rate%d", i), 1)
			}
			for now() < end {
				if err := c.exchange(request, 8*depth); err != nil {
					return err
				}
				counts[i] += depth
			}
			return nil
		})
	}
	err = g.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	return float64(total) / (float64(now()-begin) / 1e9), err
}

// thousand lets 1,000 clients connect at once; then each adds one to a number
// and waits for a key that the one who made it 1,000 sets.
func (s *server) thousand(round int) (connect, barrier float64, err error) {
	const n = 1000
	clients := make([]*client, n)
	defer func() {
		for _, c := range clients {
			if c != nil {
				c.Close()
			}
		}
	}()
	var g errgroup.Group
	begin := now()
	for i := range n {
		g.Go(func() (err error) {
			clients[i], err = s.dial()
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, 0, err
	}
	connect = float64(now()-begin) / 1e9

	key := fmt.Sprintf("/thousand%d", round)
	begin = now()
	for _, c := range clients {
		g.Go(func() error {
			if err := c.exchange(addRequest(nil, key, 1), 8); err != nil {
				return err
			}
			if !c.echo && c.number() == n {
				if _, err := c.Write(setRequest(nil, key+"/last", "1")); err != nil {
					return err
				}
			}
			return c.exchange(waitRequest(nil, key+"/last"), 1)
		})
	}
	err = g.Wait()
	return connect, float64(now()-begin) / 1e9, err
}

// unnamed connects n clients from an address that the resolver does not know.
func (s *server) unnamed(n int) (float64, error) {
	begin := now()
	for range n {
		c, err := dialFrom("127.0.0.3", s.addr, s.name == floor)
		if err != nil {
			return 0, err
		}
		c.Close()
	}
	return float64(now()-begin) / 1e9, nil
}

// storeMemory is the resident memory of a fresh server, and with 100,000 keys.
func (l *lab) storeMemory(contender string) (before, after float64, err error) {
	const keys = 100_000
	s, err := l.serve(contender)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = cmp.Or(err, s.stop()) }()
	c, err := s.dial()
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	empty, err := memoryOf(s.job.pid)
	if err != nil {
		return 0, 0, err
	}
	value := strings.Repeat("v", 1024)
	var request []byte
	for i := range keys {
		request = setRequest(request, fmt.Sprintf("/key%d", i), value)
		if len(request) > 32<<10 || i == keys-1 {
			if _, err := c.Write(request); err != nil {
				return 0, 0, err
			}
			request = request[:0]
		}
	}
	if err := c.exchange(numKeysRequest(nil), 8); err != nil {
		return 0, 0, err
	}
	if c.number() != keys {
		return 0, 0, errors.New("keys are missing")
	}
	time.Sleep(200 * time.Millisecond)
	full, err := memoryOf(s.job.pid)
	return empty.RSS, full.RSS, err
}
