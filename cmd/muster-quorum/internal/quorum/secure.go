package quorum

import (
	"crypto/ed25519"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// An identity is a certificate, in PEM, with its key and its authority.
type identity struct{ ca, cert, key []byte }

// tokenRounds make it slow to guess a token by the certificate that follows from it, which
// everybody sees who reaches a port.
const tokenRounds = 200_000

// identify returns what all have who have a token: a key that follows from it, and a certificate
// that the key has signed itself, for the names of hosts.
func identify(token string, names []string) (*identity, error) {
	seed, err := pbkdf2.Key(sha256.New, token, []byte("muster quorum 1"), tokenRounds, ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	key := ed25519.NewKeyFromSeed(seed)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "muster quorum"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range names {
		if host, _, err := net.SplitHostPort(name); err == nil {
			name = host
		}
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return &identity{cert, cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})}, nil
}

// config is for connections to members.
func (id *identity) config() (*tls.Config, error) {
	pair, err := tls.X509KeyPair(id.cert, id.key)
	authority := x509.NewCertPool()
	if err == nil && !authority.AppendCertsFromPEM(id.ca) {
		err = errors.New("the authority has no certificate in PEM")
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: authority, ClientCAs: authority, ClientAuth: tls.RequireAndVerifyClientCert,
		Certificates: []tls.Certificate{pair},
	}, err
}

// secure sets what a member's connections prove with, if anything. Etcd takes files only.
func (m *member) secure() (cleanUp func(), err error) {
	cleanUp = func() {}
	var id *identity
	switch c := &m.cfg; {
	case c.CACert != "":
		id = &identity{}
		for file, to := range map[string]*[]byte{c.CACert: &id.ca, c.Cert: &id.cert, c.Key: &id.key} {
			if *to, err = os.ReadFile(file); err != nil {
				return cleanUp, err
			}
		}
	case c.Token != "":
		if id, err = identify(c.Token, c.Members); err != nil {
			return cleanUp, err
		}
		dir, unlock, err := lockedTemp(os.TempDir())
		if err != nil {
			return cleanUp, err
		}
		cleanUp = func() { _ = os.RemoveAll(dir); unlock() }
		c.CACert, c.Key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
		c.Cert = c.CACert
		if err := errors.Join(os.WriteFile(c.Cert, id.cert, 0o600), os.WriteFile(c.Key, id.key, 0o600)); err != nil {
			return cleanUp, err
		}
	default:
		return cleanUp, nil
	}
	m.tls, err = id.config()
	m.tlsServer = m.tls.Clone()
	m.tlsServer.NextProtos = []string{"h2", "http/1.1"} // as a client would have it
	return cleanUp, err
}
