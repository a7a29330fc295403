package scheduler

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Source: scontrol show hostnames of Slurm 22.05 gives the same.
func TestExpandHostlist(t *testing.T) {
	tests := map[string]string{
		"n1":                   "n1",
		"n[0-3,07-09],x1":      "n0 n1 n2 n3 n07 n08 n09 x1",
		"n[08-11]":             "n08 n09 n10 n11",
		"n[9-11]":              "n9 n10 n11",
		"r[1-2]n[1,3]":         "r1n1 r1n3 r2n1 r2n3",
		"a[1-2]-ib,b,c[3]":     "a1-ib a2-ib b c3",
		"gpu[007-008].cluster": "gpu007.cluster gpu008.cluster",
		"r[01-02]s[1-2]n[5]-x": "r01s1n5-x r01s2n5-x r02s1n5-x r02s2n5-x",
		"[1-2]":                "1 2",
	}
	for text, want := range tests {
		got, err := expandHostlist(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(strings.Fields(want), got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", text, diff)
		}
	}
	for _, text := range []string{
		"", ",", "a,,b", "n[", "n]", "n[1", "n[]", "n[1-]", "n[-1]", "n[a]", "n[2-1]", "n[1--2]", "n[1]]", "n[[1]]", "a b", "n[1,]",
		"n[1-999999999999999999999]", "n[0-65536]", "n[0-999]x[0-999]", "n[0-65535],m", strings.Repeat("n", 300),
	} {
		if got, err := expandHostlist(text); err == nil {
			t.Errorf("%q gave %d hosts, want an error", text, len(got))
		}
	}
}

func TestLargestCount(t *testing.T) {
	for text, want := range map[string]int{"1": 1, "2(x3),1": 2, "1(x2)": 1, "1,2(x2),4,3": 4} {
		if got, err := largestCount(text); err != nil || got != want {
			t.Errorf("%s gave %v and the error %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "x", "1(x", "1(x2", "1(x0)", "1(2)", "-1", "1,,2", "1(x99999999999999999999)"} {
		if got, err := largestCount(text); err == nil {
			t.Errorf("%q gave %v, want an error", text, got)
		}
	}
}

// No list has more hosts than there may be, or a host with a name that is none.
func FuzzExpandHostlist(f *testing.F) {
	for _, seed := range []string{"n[0-3,07-09],x1", "r[1-2]n[1,3]-ib", "n[0-65535]", "n[0-999]x[0-999]", "n[", "[[", "a]b", "", ",", "n[00000000000000000001-2]"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		hosts, err := expandHostlist(text)
		if err != nil {
			return
		}
		if len(hosts) == 0 || len(hosts) > maxHosts {
			t.Errorf("%d hosts", len(hosts))
		}
		for _, host := range hosts {
			if host == "" || strings.ContainsAny(host, "[], \n") {
				t.Errorf("host %q", host)
			}
		}
	})
}

// LSF's two lists of one job name the same hosts.
func FuzzLSFHosts(f *testing.F) {
	for _, seed := range []string{"hostA 4 hostB 2", "a", "a 1 a 2", "batch5 1 a01n01 42", "a x", "", "a 99999999999999999999"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		hosts, err := parseMCPUHosts(text)
		if err != nil {
			return
		}
		if len(hosts) == 0 || len(hosts) > maxHosts {
			t.Errorf("%d hosts", len(hosts))
		}
		if got, err := hostsOf("LSB_HOSTS", strings.Fields(strings.Join(hosts, " "))); err != nil || !slices.Equal(got, hosts) {
			t.Errorf("LSB_HOSTS gives %q and the error %v, LSB_MCPU_HOSTS %q", got, err, hosts)
		}
	})
}
