package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/cmd/muster/internal/runline"
	"github.com/muster-run/muster/internal/wire/admit"
	"github.com/muster-run/muster/internal/wire/auth"
	"github.com/muster-run/muster/rendezvous/c10d"
	"github.com/muster-run/muster/store/tcpstore"
)

// storeCommand is `muster store`. It serves until ctx is done.
func storeCommand(ctx context.Context, c *command.Command, args []string) error {
	logger := c.Logger(c.Stderr)
	cfg, host, err := storeLine(c, args)
	if err != nil {
		return err
	}
	cfg.Logger, cfg.Prepare = logger, func(s *tcpstore.Server) { c10d.Serve(s, logger) }
	server, err := tcpstore.Listen(cfg)
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return fmt.Errorf("--host %s: %s; give an address of this host, or leave it out to listen on all",
			console.Quote(host), dns.Err)
	}
	if err != nil {
		return fmt.Errorf("%w; %s", err, runline.ListenAdvice(err, "--port, or 0 for a free one"))
	}
	console.Outlive()
	shown := server.Addr().String()
	if host != "" {
		shown = net.JoinHostPort(host, strconv.Itoa(server.Port()))
	}
	fmt.Fprintf(c.Stdout, "listening on %s\n", shown)
	<-ctx.Done()
	return server.Close()
}

// storeLine reads the options and the environment.
func storeLine(c *command.Command, args []string) (cfg tcpstore.ServerConfig, host string, err error) {
	port := 29500 // torch's, as the help says
	c.Number("port", &port, 0, 65535)
	var want auth.Config
	texts := map[string]*string{
		"host": &host, "token-file": &want.TokenFile, "cacert": &want.CACert, "cert": &want.Cert, "key": &want.Key,
	}
	for name, path := range texts {
		c.Value(name, "a value, or leave it out", func(text string) error {
			if *path = text; text == "" {
				return strconv.ErrSyntax
			}
			return nil
		})
	}
	c.Func("allow", "", func(text string) error {
		for one := range strings.SplitSeq(text, ",") {
			network, ok := admit.ParseNetwork(one)
			if !ok {
				c.Wrong("--allow cannot be %s; want a network such as 10.0.0.0/8 or an address such as 10.0.0.5",
					console.Quote(one))
			}
			cfg.Allow = append(cfg.Allow, network)
		}
		return nil
	})
	c.AtMost(0, args)
	if want.TokenFile == "" {
		if want.Token, err = auth.TokenOf(os.LookupEnv); err != nil {
			c.Errs = append(c.Errs, err)
		}
	}
	c.Errs = append(c.Errs, runline.UnknownVariables(os.Environ())...)
	if guard, err := auth.New(want); err != nil {
		c.Errs = append(c.Errs, err)
	} else if guard != nil {
		cfg.Guard = guard
	}
	cfg.Addr = net.JoinHostPort(host, strconv.Itoa(port))
	return cfg, host, c.Refused()
}
