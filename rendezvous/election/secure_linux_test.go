package election_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous/election"
)

// An authority makes certificates for a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert, a.key = template, newKey(t)
	a.file, _ = a.issue("ca", template)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// issue writes a certificate and its key; nil makes one for a host or a client.
func (a *authority) issue(name string, template *x509.Certificate) (certFile, keyFile string) {
	a.t.Helper()
	key := a.key
	if template == nil {
		key = newKey(a.t)
		template = &x509.Certificate{
			SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	dir := a.t.TempDir()
	return a.write(dir, name+".pem", "CERTIFICATE", der), a.write(dir, name+"-key.pem", "EC PRIVATE KEY", secret)
}

func (a *authority) write(dir, name, kind string, der []byte) string {
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return file
}

// A cluster that is there already, with TLS, certificates of clients, users and
// passwords.
func TestSecureCluster(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	cert, key := ca.issue("host", nil)
	clientCert, clientKey := ca.issue("client", nil)
	client, peer := freeAddress(t), freeAddress(t)
	cluster := spawn(t, exec.Command(etcd), map[string]string{
		"listen": client, "peer": peer, "dir": t.TempDir(), "cacert": ca.file, "cert": cert, "key": key})
	cluster.expect("ready")
	cluster.ask("auth alice wonder /muster/")

	good := election.Config{
		RunID: "job", Addr: "host0:29400", Endpoints: []string{client}, Program: muster, TTL: 10 * time.Second,
		CACert: ca.file, Cert: clientCert, Key: clientKey, User: "alice", Password: "wonder",
	}
	agree(t, startAgent(t, good), startAgent(t, good))

	for _, tt := range []struct {
		name   string
		change func(*election.Config)
		want   string
	}{
		{"wrong password", func(c *election.Config) { c.Password = "wander" }, `etcd refuses user "alice": user or password is wrong`},
		{"unknown user", func(c *election.Config) { c.User = "bob" }, `etcd refuses user "bob"`},
		{"no user", func(c *election.Config) { c.User, c.Password = "", "" }, "etcd wants a user and a password"},
		{"no permission", func(c *election.Config) { c.User, c.Password = "nobody", "nothing" },
			`etcd's user "nobody" may not read and write /muster/job/: give its role readwrite on the prefix /muster/`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := good
			tt.change(&cfg)
			if _, err := startAgent(t, cfg).tryLeader(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Leader: got %v, want %q in it", err, tt.want)
			}
		})
	}

	stranger := newAuthority(t)
	for _, tt := range []struct {
		name   string
		change func(*election.Config)
		want   string
	}{
		{"other authority", func(c *election.Config) { c.CACert = stranger.file }, "certificate signed by unknown authority"},
		{"no TLS", func(c *election.Config) { c.CACert, c.Cert, c.Key = "", "", "" }, "no member of etcd answers: " + client + ": it speaks TLS"},
		{"nobody there", func(c *election.Config) { c.Endpoints = []string{freeAddress(t)} }, "connect: connection refused"},
		{"no such name", func(c *election.Config) { c.Endpoints = []string{"etcd.invalid:2379"} }, "etcd.invalid:2379: lookup etcd.invalid"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := good
			tt.change(&cfg)
			t.Log(startAgent(t, cfg).waits(tt.want))
		})
	}
}

// freeAddress is one on which nobody listens, with a port that the kernel gives to
// nobody who asks for any.
func freeAddress(t *testing.T) string {
	t.Helper()
	var err error
	for range 100 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+mathrand.IntN(20_000))); err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal(err)
	return ""
}
