// Command testetcd is etcd for tests, as somebody else's cluster would be: one
// member, with TLS and authentication if asked for. It is built and started by
// tests, reads its settings as a line of JSON, and then answers commands, one a
// line; it ends with its stdin.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// settings is the first line.
type settings struct {
	Listen    string   `json:"listen"`    // host:port; empty for a client only
	Peer      string   `json:"peer"`      // host:port
	Dir       string   `json:"dir"`       // for data
	Endpoints []string `json:"endpoints"` // of a cluster that runs, if Listen is empty

	CACert, Cert, Key string // files; with Cert, TLS with client certificates
}

func main() {
	if err := run(); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

func run() error {
	in := bufio.NewScanner(os.Stdin)
	var s settings
	if !in.Scan() {
		return fmt.Errorf("no settings")
	}
	if err := json.Unmarshal(in.Bytes(), &s); err != nil {
		return err
	}
	config := clientv3.Config{Endpoints: s.Endpoints, Logger: zap.NewNop(), DialTimeout: 10 * time.Second}
	if s.Listen != "" {
		e, err := serve(&s)
		if err != nil {
			return err
		}
		defer e.Server.HardStop()
		<-e.Server.ReadyNotify()
		config.Endpoints = []string{s.scheme() + "://" + s.Listen}
	}
	if s.Cert != "" {
		info := transport.TLSInfo{CertFile: s.Cert, KeyFile: s.Key, TrustedCAFile: s.CACert}
		var err error
		if config.TLS, err = info.ClientConfig(); err != nil {
			return err
		}
	}
	cli, err := clientv3.New(config)
	if err != nil {
		return err
	}
	defer cli.Close()
	fmt.Println("ready")
	for in.Scan() {
		answer, err := do(cli, strings.Fields(in.Text()))
		if err != nil {
			return err
		}
		fmt.Println(answer)
	}
	return nil
}

func (s *settings) scheme() string {
	if s.Cert != "" {
		return "https"
	}
	return "http"
}

func serve(s *settings) (*embed.Etcd, error) {
	c := embed.NewConfig()
	client, peer := []url.URL{{Scheme: s.scheme(), Host: s.Listen}}, []url.URL{{Scheme: "http", Host: s.Peer}}
	c.Dir = s.Dir
	c.ListenClientUrls, c.AdvertiseClientUrls, c.ListenPeerUrls, c.AdvertisePeerUrls = client, client, peer, peer
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.UnsafeNoFsync = true
	c.EnableGRPCGateway = false
	c.BcryptCost = 4
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	if s.Cert != "" {
		c.ClientTLSInfo = transport.TLSInfo{CertFile: s.Cert, KeyFile: s.Key, TrustedCAFile: s.CACert, ClientCertAuth: true}
	}
	return embed.StartEtcd(c)
}

// do answers one command.
func do(cli *clientv3.Client, words []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	switch strings.Join(words[:min(1, len(words))], "") {
	case "keys": // all of them, with a * behind those that no lease will remove
		r, err := cli.Get(ctx, "", clientv3.WithPrefix())
		if err != nil {
			return "", err
		}
		names := []string{"keys"}
		for _, kv := range r.Kvs {
			name := string(kv.Key)
			if kv.Lease == 0 {
				name += "*"
			}
			names = append(names, name)
		}
		return strings.Join(names, " "), nil
	case "status": // asks for it, again and again, until nobody answers
		go flood(cli)
		return "status", nil
	case "gone": // KEY: waits until it is
		return "gone", gone(ctx, cli, words[1])
	case "auth": // USER PASSWORD PREFIX: enables authentication, with a user who may write there
		return "auth", auth(ctx, cli, words[1], words[2], words[3])
	}
	return "", fmt.Errorf("command %q", words)
}

func flood(cli *clientv3.Client) {
	for range 16 {
		go func() {
			for {
				if _, err := cli.Status(context.Background(), cli.Endpoints()[0]); err != nil {
					return
				}
			}
		}()
	}
}

func gone(ctx context.Context, cli *clientv3.Client, key string) error {
	r, err := cli.Get(ctx, key)
	if err != nil || len(r.Kvs) == 0 {
		return err
	}
	for w := range cli.Watch(ctx, key, clientv3.WithRev(r.Header.Revision+1)) {
		for _, e := range w.Events {
			if e.Type == clientv3.EventTypeDelete {
				return nil
			}
		}
		if w.Err() != nil {
			return w.Err()
		}
	}
	return ctx.Err()
}

func auth(ctx context.Context, cli *clientv3.Client, user, password, prefix string) error {
	steps := []func() error{
		func() error { _, err := cli.UserAdd(ctx, "root", "secret"); return err },
		func() error { _, err := cli.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := cli.RoleAdd(ctx, "job"); return err },
		func() error {
			_, err := cli.RoleGrantPermission(ctx, "job", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := cli.UserAdd(ctx, user, password); return err },
		func() error { _, err := cli.UserGrantRole(ctx, user, "job"); return err },
		func() error { _, err := cli.UserAdd(ctx, "nobody", "nothing"); return err },
		func() error { _, err := cli.AuthEnable(ctx); return err },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
