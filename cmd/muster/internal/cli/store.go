package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/muster-run/muster/internal/auth"
	"github.com/muster-run/muster/rendezvous/c10d"
	"github.com/muster-run/muster/store/tcpstore"
)

const storeUsage = `usage: muster store [--host HOST] [--port PORT] [--allow CIDR[,CIDR...]]
                    [--token-file PATH] [--cacert PATH --cert PATH --key PATH]

Serves a TCPStore until it is interrupted, and prints "listening on HOST:PORT"
once clients can connect. PyTorch's own clients work with it:

    torch.distributed.TCPStore(HOST, PORT, is_master=False, wait_for_workers=False)

It also holds the rendezvous of jobs that name it as their --rdzv-endpoint, so
that no worker host's loss ends them.

  --host HOST   address to listen on; without it, all addresses of this host
  --port PORT   port to listen on (default 29500); 0 picks a free one
  --allow CIDR  networks or addresses that may connect, such as 10.0.0.0/8 or
                fd00::1; may be repeated. Workers on this host may come from
                127.0.0.1 or ::1. Without it, everybody may

  --token-file PATH
                a file with the token of the jobs that it serves, as token_file in
                --rdzv-conf; or the variable MUSTER_TOKEN
  --cacert PATH --cert PATH --key PATH
                files in PEM, as in --rdzv-conf: TLS 1.3 with certificates on both ends

Without these TCPStore has no passwords and no encryption: whoever can connect can
read and change everything. Use --host and --allow, or a firewall. With them only
agents of muster can connect, and neither torchrun nor PyTorch's clients.
`

// storeCommand is `muster store`. It serves until ctx is done.
func storeCommand(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fail := func(status int, format string, a ...any) int {
		fmt.Fprintf(stderr, "muster store: error: "+format+"\n", a...)
		return status
	}
	flags := flag.NewFlagSet("muster store", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error is reported below
	host := flags.String("host", "", "")
	portText := flags.String("port", "29500", "")
	var want auth.Config
	flags.StringVar(&want.TokenFile, "token-file", "", "")
	flags.StringVar(&want.CACert, "cacert", "", "")
	flags.StringVar(&want.Cert, "cert", "", "")
	flags.StringVar(&want.Key, "key", "", "")
	var allowTexts []string
	flags.Func("allow", "", func(text string) error {
		allowTexts = append(allowTexts, strings.Split(text, ",")...)
		return nil
	})
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		io.WriteString(stdout, storeUsage)
		return exitOK
	}
	errs := []error{err}
	port, err := strconv.ParseUint(*portText, 10, 16)
	if err != nil {
		errs = append(errs, fmt.Errorf("--port %s: want a number from 0 to 65535", quote(*portText)))
	}
	allow, err := parseNetworks(allowTexts)
	if err != nil {
		errs = append(errs, err)
	}
	flags.Visit(func(f *flag.Flag) {
		if f.Value.String() == "" && slices.Contains([]string{"token-file", "cacert", "cert", "key"}, f.Name) {
			errs = append(errs, fmt.Errorf("--%s is empty: name a file, or leave it out", f.Name))
		}
	})
	if want.TokenFile == "" {
		if want.Token, err = auth.TokenOf(os.LookupEnv); err != nil {
			errs = append(errs, err)
		}
	}
	guard, err := auth.New(want)
	if err != nil {
		errs = append(errs, err)
	}
	if flags.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %s", quote(flags.Arg(0))))
	}
	if err := errors.Join(errs...); err != nil {
		io.WriteString(stderr, storeUsage)
		return fail(exitUsage, "%v", err)
	}
	logger, err := newLogger(stderr, os.LookupEnv)
	if err != nil {
		return fail(exitUsage, "%v", err)
	}

	addr := net.JoinHostPort(*host, strconv.FormatUint(port, 10))
	cfg := tcpstore.ServerConfig{
		Addr: addr, Allow: allow, Logger: logger,
		Prepare: func(s *tcpstore.Server) { c10d.Serve(s, logger) },
	}
	if guard != nil {
		cfg.Guard = guard
	}
	server, err := tcpstore.Listen(cfg)
	if err != nil {
		return fail(exitError, "%v; %s", err, listenAdvice(err))
	}
	shown := server.Addr().String()
	if *host != "" {
		shown = net.JoinHostPort(*host, strconv.Itoa(server.Port()))
	}
	fmt.Fprintf(stdout, "listening on %s\n", shown)
	<-ctx.Done()
	if err := server.Close(); err != nil {
		return fail(exitError, "%v", err)
	}
	return exitOK
}

// parseNetworks reads the values of --allow: networks, or single addresses.
func parseNetworks(texts []string) (networks []netip.Prefix, err error) {
	var errs []error
	for _, text := range texts {
		text = strings.TrimSpace(text)
		network, err := netip.ParsePrefix(text)
		if err != nil {
			addr, addrErr := netip.ParseAddr(text)
			if addrErr != nil || addr.Zone() != "" {
				errs = append(errs, fmt.Errorf("--allow %s: want a network such as 10.0.0.0/8 or an address such as 10.0.0.5", quote(text)))
				continue
			}
			network = netip.PrefixFrom(addr, addr.BitLen())
		}
		networks = append(networks, network)
	}
	return networks, errors.Join(errs...)
}

// listenAdvice says what to do about an address that cannot be listened on.
func listenAdvice(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "another process has the port (`ss -ltnp` names it); choose another --port, or 0 for a free one"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "--host must be an address of this host; leave it out to listen on all"
	case errors.Is(err, syscall.EACCES):
		return "ports below 1024 are reserved; choose another --port"
	}
	return "check --host and --port"
}
