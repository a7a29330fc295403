package auth

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
)

// protocol keeps connections for other purposes, with the same certificates, apart.
const protocol = "muster-agents/1"

// tlsConfig is for either end; nil without files.
func tlsConfig(cfg *Config) (*tls.Config, error) {
	if cfg.CACert == "" && cfg.Cert == "" && cfg.Key == "" {
		return nil, nil
	}
	if cfg.CACert == "" || cfg.Cert == "" || cfg.Key == "" {
		return nil, errors.New("TLS between agents is mutual: give cacert, cert and key together")
	}
	pem, err := os.ReadFile(cfg.CACert)
	if err != nil {
		return nil, fmt.Errorf("cacert: %w", err)
	}
	authority := x509.NewCertPool()
	if !authority.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("cacert: %s has no certificate in PEM", cfg.CACert)
	}
	if info, err := os.Stat(cfg.Key); err == nil {
		if err := private("key", cfg.Key, info); err != nil {
			return nil, err
		}
	}
	pair, err := tls.LoadX509KeyPair(cfg.Cert, cfg.Key)
	if err != nil {
		return nil, fmt.Errorf("cert and key: %w", err)
	}
	// Both ends are agents, either of which may hold the rendezvous: what counts is who
	// signed, not for which name or which end.
	check := func(chain []*x509.Certificate) error {
		others := x509.NewCertPool()
		for _, c := range chain[1:] {
			others.AddCert(c)
		}
		_, err := chain[0].Verify(x509.VerifyOptions{Roots: authority, Intermediates: others,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		return err
	}
	own := make([]*x509.Certificate, len(pair.Certificate))
	for i, der := range pair.Certificate {
		if own[i], err = x509.ParseCertificate(der); err != nil {
			return nil, fmt.Errorf("cert: %w", err)
		}
	}
	if err := check(own); err != nil {
		return nil, fmt.Errorf("cert: other agents would refuse %s by the authority in cacert: %w", cfg.Cert, err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, NextProtos: []string{protocol},
		SessionTicketsDisabled: true, ClientAuth: tls.RequireAnyClientCert,
		InsecureSkipVerify: true, // VerifyConnection does it, on both ends
		VerifyConnection: func(s tls.ConnectionState) error {
			if s.NegotiatedProtocol != protocol {
				return &certificateError{errors.New("not an agent of muster")}
			}
			if err := check(s.PeerCertificates); err != nil {
				return &certificateError{err}
			}
			return nil
		},
	}, nil
}

// A certificateError says why the other end's certificate is not good.
type certificateError struct{ error }

// bind returns a secret of a connection that nobody in the middle has.
func bind(conn *tls.Conn) ([]byte, error) {
	s := conn.ConnectionState()
	return s.ExportKeyingMaterial("EXPORTER-muster-agents", nil, 32)
}

// tlsFault tells what another attempt cannot mend from what it may.
func tlsFault(err error) error {
	op, _ := errors.AsType[*net.OpError](err)
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	_, wrong := errors.AsType[*certificateError](err)
	switch {
	case plain:
		return &RefusedError{Reason: "the store does not speak TLS", Help: helpTLS}
	case wrong:
		return &RefusedError{Reason: fmt.Sprintf("the store's certificate: %v", err), Help: helpTLS}
	case op != nil && op.Op == "remote error":
		return &RefusedError{Reason: fmt.Sprintf("the store refuses this agent's certificate: %v", op.Err), Help: helpTLS}
	}
	return err
}
