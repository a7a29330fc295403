package quorum

import "testing"

// Where no other host can take part, nothing listens for one.
func TestLoopback(t *testing.T) {
	for endpoint, want := range map[string]string{
		"localhost": "127.0.0.1", "127.0.0.1:29401": "127.0.0.1", "[::1]:29401": "::1",
		"192.0.2.1": "", "a.muster.invalid": "", "127.0.0.1,192.0.2.1,192.0.2.2": "",
		"127.0.0.2": "", // an agent's own address is 127.0.0.1
	} {
		members, err := Members(endpoint)
		if got := loopback(members); err != nil || got != want {
			t.Errorf("%s: listens at %q, want %q; %v", endpoint, got, want, err)
		}
	}
}
