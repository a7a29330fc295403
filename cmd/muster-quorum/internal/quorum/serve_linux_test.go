package quorum

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/wire/pipe"
)

// A member that was added to a cluster asks again where the others cannot tell yet what etcd
// wants to know of them.
func TestOthersNotReady(t *testing.T) {
	ready := map[string]string{"/members": "", "/version": `{"etcdserver":"3.6.0","etcdcluster":"3.6.0"}`}
	for _, tt := range []struct{ name, path, answer string }{
		{"no version decided", "/version", `{"etcdserver":"3.6.0","etcdcluster":"not_decided"}`},
		{"one member fewer", "/members", "two"},
		{"another in this one's place", "/members", "other"},
		{"no list", "/members", "busy"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := 1+rand.IntN(250), 1+rand.IntN(250)
			var names []string
			for i := range 3 {
				names = append(names, fmt.Sprintf("127.%d.%d.%d:29400", a, b, i+1))
			}
			list := func(what string) string {
				members := []rosterMember{{ID: 1, PeerURLs: []string{"http://" + peerOf(t, names[0])}}}
				for i, name := range names[1:] {
					members = append(members, rosterMember{ID: uint64(i) + 2, Name: name, PeerURLs: []string{"http://" + peerOf(t, name)}, ClientURLs: []string{"http://" + name}})
				}
				switch what {
				case "two":
					members = members[1:]
				case "other":
					members[0].PeerURLs = []string{"http://192.0.2.1:1"}
				case "busy":
					return "busy"
				}
				text, err := json.Marshal(members)
				if err != nil {
					t.Error(err)
				}
				return string(text)
			}
			var asked atomic.Int32 // by etcd, for what it is not told at first
			again := make(chan struct{})
			handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				answer := ready[r.URL.Path]
				byEtcd := r.Header.Get("Connection") == "" && !r.Close // askHost keeps no connection
				if byEtcd && r.URL.Path == tt.path {
					answer = tt.answer
					if asked.Add(1) == 5 { // one or two for each start
						close(again)
					}
				}
				if r.URL.Path == "/members" {
					answer = list(answer)
				}
				w.Header().Set(clusterHeader, "abc")
				_, _ = io.WriteString(w, answer)
			})
			for _, name := range names[1:] {
				l, err := net.Listen("tcp", peerOf(t, name))
				if err != nil {
					t.Fatal(err)
				}
				s := httptest.NewUnstartedServer(handler)
				s.Listener.Close()
				s.Listener = l
				s.Start()
				defer s.Close()
			}
			in, settings := io.Pipe()
			reports, out := io.Pipe()
			done := make(chan error, 1)
			go func() {
				done <- Serve(t.Context(), in, out, slog.New(slog.DiscardHandler))
				out.Close()
			}()
			host, data := strings.TrimSuffix(names[0], ":29400"), t.TempDir()
			go func() {
				_ = pipe.NewWriter(settings).Write(pipe.Serve{RunID: "job", Name: names[0], Members: names, Bind: host, DataDir: data})
			}()
			said := make(chan string, 1)
			go func() {
				var all strings.Builder
				_, _ = io.Copy(&all, reports)
				said <- all.String()
			}()
			select {
			case <-again:
			case err := <-done:
				t.Fatalf("the member gave up: %v", err)
			case <-time.After(time.Minute):
				t.Fatalf("etcd asked %d times", asked.Load())
			}
			settings.Close()
			if err := <-done; err != nil {
				t.Errorf("Serve: %v", err)
			}
			if s := <-said; strings.Contains(s, `"error"`) {
				t.Errorf("reports:\n%s", s)
			}
		})
	}
}

// peerOf is where a named member talks to the others.
func peerOf(t *testing.T, name string) string {
	t.Helper()
	h, err := parseHost(name, defaultPort)
	if err != nil {
		t.Fatal(err)
	}
	return h.peer
}
