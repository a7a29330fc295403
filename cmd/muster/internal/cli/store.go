package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/muster-run/muster/internal/wire/admit"
	"github.com/muster-run/muster/internal/wire/auth"
	"github.com/muster-run/muster/rendezvous/c10d"
	"github.com/muster-run/muster/store/tcpstore"
)

// storeCommand is `muster store`. It serves until ctx is done.
func storeCommand(ctx context.Context, c *command, args []string) error {
	logger := c.logger(c.stderr)
	cfg, host, err := storeLine(c, args)
	if err != nil {
		return err
	}
	cfg.Logger, cfg.Prepare = logger, func(s *tcpstore.Server) { c10d.Serve(s, logger) }
	server, err := tcpstore.Listen(cfg)
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return fmt.Errorf("--host %s: %s; give an address of this host, or leave it out to listen on all",
			quote(host), dns.Err)
	}
	if err != nil {
		return fmt.Errorf("%w; %s", err, listenAdvice(err, "--port, or 0 for a free one"))
	}
	outliveConsole()
	shown := server.Addr().String()
	if host != "" {
		shown = net.JoinHostPort(host, strconv.Itoa(server.Port()))
	}
	fmt.Fprintf(c.stdout, "listening on %s\n", shown)
	<-ctx.Done()
	return server.Close()
}

// storeLine reads the options and the environment.
func storeLine(c *command, args []string) (cfg tcpstore.ServerConfig, host string, err error) {
	port := 29500 // torch's, as the help says
	c.number("port", &port, 0, 65535)
	var want auth.Config
	texts := map[string]*string{
		"host": &host, "token-file": &want.TokenFile, "cacert": &want.CACert, "cert": &want.Cert, "key": &want.Key,
	}
	for name, path := range texts {
		c.value(name, "a value, or leave it out", func(text string) error {
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
				c.wrong("--allow cannot be %s; want a network such as 10.0.0.0/8 or an address such as 10.0.0.5", quote(one))
			}
			cfg.Allow = append(cfg.Allow, network)
		}
		return nil
	})
	c.atMost(0, args)
	if want.TokenFile == "" {
		if want.Token, err = auth.TokenOf(os.LookupEnv); err != nil {
			c.errs = append(c.errs, err)
		}
	}
	c.errs = append(c.errs, unknownVariables(os.Environ())...)
	if guard, err := auth.New(want); err != nil {
		c.errs = append(c.errs, err)
	} else if guard != nil {
		cfg.Guard = guard
	}
	cfg.Addr = net.JoinHostPort(host, strconv.Itoa(port))
	return cfg, host, c.refused()
}

// listenAdvice says what to do about an address that cannot be listened on. option is
// the one that names the port.
func listenAdvice(err error, option string) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "`ss -ltnp` names the process that has the port; choose another " + option
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "give an address of this host as --host, or leave it out to listen on all"
	case errors.Is(err, syscall.EACCES):
		return "choose another " + option + ": ports below 1024 are reserved"
	}
	return "check --host and --port"
}
