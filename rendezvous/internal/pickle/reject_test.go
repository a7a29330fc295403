package pickle_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/muster-run/muster/rendezvous/internal/pickle"
)

// TestMustReject wants each of the vectors' bad inputs to be refused with a
// message that says where and why.
func TestMustReject(t *testing.T) {
	want := map[string]string{
		"os-system":           `at byte 2: it wants "system" of module "posix", which no rendezvous state has`,
		"builtins-eval":       `at byte 18: it wants "eval" of module "builtins", which no rendezvous state has`,
		"global-only":         `at byte 2: it wants "system" of module "os", which no rendezvous state has`,
		"dotted-attribute":    `at byte 31: it wants "datetime.__class__" of module "datetim", which no rendezvous state has`,
		"reduce-on-statedict": `at byte 2: it wants "pickle.loads" of module "torch.distributed.elastic.rendezvous.dynamic_rendezvous", which no rendezvous state has`,
		"inst":                `at byte 3: no rendezvous state has the opcode "i"`,
		"obj":                 `at byte 3: it wants "system" of module "posix", which no rendezvous state has`,
		"ext1":                `at byte 2: no rendezvous state has the opcode "\x82"`,
		"persid":              `at byte 2: no rendezvous state has the opcode "P"`,
		"next-buffer":         `at byte 2: no rendezvous state has the opcode "\x97"`,
		"truncated":           `at byte 2: 483 bytes follow where 490 are announced`,
		"empty":               `at byte 0: it is empty`,
		"garbage":             `at byte 0: "garbage" begins no pickle of protocol 2 to 5`,
		"no-state":            `at byte 4: what it ends with is not a rendezvous state`,
		"memo-missing":        `at byte 2: nothing was stored at memo index 5`,
		"stack-underflow":     `at byte 2: there is no MARK before it`,
		"huge-length":         `at byte 2: no rendezvous state has the opcode "\x8d"`,
		"protocol-6":          `at byte 0: protocol 6; known are 2 to 5`,
	}
	for _, v := range load(t).MustReject {
		t.Run(v.ID, func(t *testing.T) {
			s, err := pickle.DecodeText([]byte(v.Base64))
			wantError(t, s, err, want[v.ID])
		})
	}
}

func wantError(t *testing.T, s any, err error, want string) {
	t.Helper()
	e, ok := errors.AsType[*pickle.Error](err)
	if !ok {
		t.Fatalf("state %v, error %v; want a pickle.Error", s, err)
	}
	want = "not a rendezvous state: " + want
	if e.Error() != want {
		t.Errorf("got  %s\nwant %s", e, want)
	}
}

// Pieces of pickles.
const (
	module   = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
	p2       = "\x80\x02"
	p4       = "\x80\x04"
	newState = "c" + module + "\n_RendezvousState\n)\x81"
	newNode  = "c" + module + "\n_NodeDesc\n)\x81"
	oneNode  = newNode + "}(" + "\x8c\x04addr\x8c\x01h" + "\x8c\x03pidK\x07" + "\x8c\x08local_idK\x00" + "ub"
	utc      = "cdatetime\ntimezone\ncdatetime\ntimedelta\nK\x00K\x00K\x00\x87R\x85R"
	newTime  = "cdatetime\ndatetime\nC\x0a\x07\xea\x0b\x15\x04\x0d\x07\x0e\xde\x60" + utc + "\x86R"
)

// fields are the attributes of a state, as pieces of a pickle.
type fields map[string]string

func (f fields) and(more ...string) fields {
	g := fields{"round": "K\x00", "complete": "\x89", "deadline": "N", "closed": "\x89",
		"participants": "}", "wait_list": "\x8f", "redundancy_list": "\x8f", "last_heartbeats": "}"}
	for i := 0; i < len(more); i += 2 {
		g[more[i]] = more[i+1]
	}
	return g
}

// pickle makes a pickle with the attributes in a fixed order; those that are ""
// are left out.
func (f fields) pickle(proto string) string {
	var b strings.Builder
	b.WriteString(proto + newState + "}(")
	for _, name := range []string{"before", "round", "complete", "deadline", "closed", "participants", "wait_list", "redundancy_list", "last_heartbeats", "extra"} {
		if f[name] != "" {
			fmt.Fprintf(&b, "X%c\x00\x00\x00%s%s", len(name), name, f[name])
		}
	}
	b.WriteString("ub.")
	return b.String()
}

// TestReject has inputs that the vectors have not. Most are states but for one thing.
func TestReject(t *testing.T) {
	with := func(more ...string) string { return fields{}.and(more...).pickle(p4) }
	tests := []struct{ name, data, want string }{
		{"no stop", p4 + "N", "at byte 3: the pickle ends without STOP: it is cut off"},
		{"only a state's class", p4 + "c" + module + "\n_RendezvousState\n.", "what it ends with is not a rendezvous state"},
		{"bare state", p4 + newState + ".", "what it ends with is not a rendezvous state"},
		{"two values", p4 + "NN.", "what it ends with is not a rendezvous state"},
		{"open mark", p4 + "N(.", "too few values on the stack"},
		{"second state", with("extra", newState), `an object of "torch.distributed.elastic.rendezvous.dynamic_rendezvous _RendezvousState" that no rendezvous state makes so`},
		{"built twice", p4 + newState + "}b}b.", "a state gets attributes twice"},
		{"second protocol", p4 + p4 + "N.", `no rendezvous state has the opcode "\x80"`},
		{"protocol 1", "\x80\x01N.", "protocol 1; known are 2 to 5"},
		{"protocol 0", "(lp0\n.", `"(lp0\n." begins no pickle of protocol 2 to 5`},
		{"frame too long", p4 + "\x95\xff\xff\xff\xff\xff\xff\xff\xffN.", "2 bytes follow where 18446744073709551615 are announced"},
		{"cut int", p4 + "J\x01", "1 bytes follow where 4 are announced"},
		{"cut str", p4 + "X\xff\xff\xff\xffabc", "3 bytes follow where 4294967295 are announced"},
		{"cut bytes", p4 + "C\x09abc", "3 bytes follow where 9 are announced"},
		{"not UTF-8", p4 + "\x8c\x02\xff\xfe.", `the str "\xff\xfe" is not UTF-8`},
		{"endless name", p4 + "c" + strings.Repeat("a", 300) + "\nb\n.", `it wants "b" of module "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", which no rendezvous state has`},
		{"memo index far out", p4 + "Nr\xff\xff\xff\x7f.", "memo index 2147483647 after 0 values"},
		{"memo gap", p4 + "Nq\x05h\x04.", "memo index 5 after 0 values"},
		{"pop through a mark", p4 + "N(\x85.", "too few values on the stack"},
		{"nothing to memoize", p4 + "(\x94.", "too few values on the stack"},

		{"dotted", with("extra", "\x8c\x08datetime\x8c\x11datetime.datetime\x93"), `it wants "datetime.datetime" of module "datetime", which no rendezvous state has`},
		{"names that are none", with("extra", "K\x00K\x01\x93"), "a name: missing, or of another type"},
		{"call of a node", with("extra", "c"+module+"\n_NodeDesc\n)R"), `a call of "torch.distributed.elastic.rendezvous.dynamic_rendezvous _NodeDesc" that no rendezvous state makes`},
		{"call with a list", with("extra", "cdatetime\ndatetime\n]R"), "the arguments of a call: missing, or of another type"},
		{"object with arguments", with("extra", "c"+module+"\n_NodeDesc\nN\x85\x81"), `an object of "torch.distributed.elastic.rendezvous.dynamic_rendezvous _NodeDesc" that no rendezvous state makes so`},
		{"object of datetime", with("extra", "cdatetime\ndatetime\n)\x81"), `an object of "datetime datetime" that no rendezvous state makes so`},
		{"attributes of a time", with("extra", newTime+"}b"), "attributes for what is not an object"},
		{"attributes in a list", with("extra", newNode+"]b"), "attributes: not in a dict"},
		{"attribute without a name", with("extra", newNode+"}NNsb"), "the name of an attribute: missing, or of another type"},
		{"set of a tuple", fields{}.and("wait_list", "cbuiltins\nset\n)\x85R").pickle(p2), "what a set is made of: missing, or of another type"},
		{"encode in UTF-8", fields{}.and("extra", "c_codecs\nencode\nX\x01\x00\x00\x00aX\x04\x00\x00\x00utf8\x86R").pickle(p2), `a call of "_codecs encode" that no rendezvous state makes`},
		{"encode of more than Latin-1", fields{}.and("extra", "c_codecs\nencode\nX\x03\x00\x00\x00\xe2\x82\xacX\x06\x00\x00\x00latin1\x86R").pickle(p2), "'€' in bytes"},

		{"zone", with("deadline", strings.Replace(newTime, "K\x00K\x00K\x00", "K\x00M\x10\x0eK\x00", 1)), "a time that is not one in UTC"},
		{"zone with a name", with("extra", "cdatetime\ntimezone\nNN\x86R"), "a time that is not one in UTC"},
		{"short time", with("extra", "cdatetime\ndatetime\nC\x03abc\x85R"), "a datetime of the 3 bytes 616263: there is no such time"},
		{"30 February", with("extra", "cdatetime\ndatetime\nC\x0a\x07\xea\x02\x1e\x00\x00\x00\x00\x00\x00\x85R"), "a datetime of the 10 bytes 07ea021e000000000000: there is no such time"},
		{"month 0", with("extra", "cdatetime\ndatetime\nC\x0a\x07\xea\x00\x01\x00\x00\x00\x00\x00\x00\x85R"), "a datetime of the 10 bytes 07ea0001000000000000: there is no such time"},
		{"second 60", with("extra", "cdatetime\ndatetime\nC\x0a\x07\xea\x01\x01\x00\x00\x3c\x00\x00\x00\x85R"), "a datetime of the 10 bytes 07ea010100003c000000: there is no such time"},
		{"million microseconds", with("extra", "cdatetime\ndatetime\nC\x0a\x07\xea\x01\x01\x00\x00\x00\x0f\x42\x40\x85R"), "a datetime of the 10 bytes 07ea01010000000f4240: there is no such time"},
		{"time from text", with("extra", "cdatetime\ndatetime\n\x8c\x03abc\x85R"), "what a datetime is made of: missing, or of another type"},
		{"time from numbers", with("extra", "cdatetime\ndatetime\nM\xea\x07K\x0bK\x15\x87R"), "a time that is not one in UTC"},

		{"node not built, in a set", with("wait_list", "\x8f("+newNode+"\x90"), "a node has no attributes"},
		{"node not built, as a key", with("participants", "}"+newNode+"K\x00s"), "a node has no attributes"},
		{"node without an address", with("wait_list", "\x8f("+newNode+"}b\x90"), "a node's addr: missing, or of another type"},
		{"PID in text", with("extra", newNode+"}(\x8c\x04addr\x8c\x01a\x8c\x03pid\x8c\x017ub"), "a node's pid: missing, or of another type"},
		{"no local ID", with("extra", newNode+"}(\x8c\x04addr\x8c\x01a\x8c\x03pidK\x00ub"), "a node's local_id: missing, or of another type"},
		{"long address", with("extra", newNode+"}(\x8c\x04addrX\x01\x04\x00\x00"+strings.Repeat("a", 1025)+"\x8c\x03pidK\x00\x8c\x08local_idK\x00ub"), "a node's addr of 1025 bytes, more than 1024"},
		{"node built twice", with("extra", oneNode+"}b"), "a node gets attributes twice"},

		{"no round", with("round", ""), "round: missing, or of another type"},
		{"round true", with("round", "\x88"), "round: missing, or of another type"},
		{"round in LONG1", with("round", "\x8a\x01\x05"), `no rendezvous state has the opcode "\x8a"`},
		{"no deadline", with("deadline", ""), "deadline: missing, or of another type"},
		{"deadline a number", with("deadline", "K\x01"), "deadline: missing, or of another type"},
		{"complete None", with("complete", "N"), "complete: missing, or of another type"},
		{"closed 1", with("closed", "K\x01"), "closed: missing, or of another type"},
		{"participants a set", with("participants", "\x8f"), "participants: missing, or of another type"},
		{"no wait list", with("wait_list", ""), "wait_list: missing, or of another type"},
		{"wait list a list", with("wait_list", "]"), "wait_list: missing, or of another type"},
		{"redundancy list None", with("redundancy_list", "N"), "redundancy_list: missing, or of another type"},
		{"no heartbeats", with("last_heartbeats", ""), "last_heartbeats: missing, or of another type"},
		{"rank None", with("participants", "}"+oneNode+"Ns"), "a rank: missing, or of another type"},
		{"text waits", with("wait_list", "\x8f(\x8c\x01a\x90"), "a key or member: missing, or of another type"},
		{"text participates", with("participants", "}\x8c\x01aK\x00s"), "a key or member: missing, or of another type"},
		{"heartbeat None", with("last_heartbeats", "}"+oneNode+"Ns"), "a heartbeat: missing, or of another type"},
		{"key without a value", with("participants", "}("+oneNode+"u"), "items of another kind than what gets them"},
		{"members for a dict", with("participants", "}("+oneNode+"\x90"), "items of another kind than what gets them"},
		{"items for a list", with("extra", "](NNu"), "items of another kind than what gets them"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := pickle.Decode([]byte(tt.data))
			e, ok := errors.AsType[*pickle.Error](err)
			if !ok {
				t.Fatalf("state %+v, error %v; want a pickle.Error", s, err)
			}
			if !strings.HasSuffix(e.Error(), tt.want) {
				t.Errorf("got %q\nwant %q", e, tt.want)
			}
			if e.Offset > len(tt.data) {
				t.Errorf("byte %d of %d", e.Offset, len(tt.data))
			}
		})
	}
}

// TestEveryPrefix wants every state that is cut off anywhere to be refused, and
// those with any opcode in its place that no state has.
func TestEveryPrefix(t *testing.T) {
	const unknown = "0123456789" + "dfgilmnopt" + "BDEFGHILOPQSTUVWYZ" + "\x00\x82\x83\x84\x8a\x8b\x8d\x8e\x91\x92\x96\x97\x98\xff"
	for _, v := range load(t).States {
		data, err := base64.StdEncoding.DecodeString(v.Base64)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 2000 {
			continue
		}
		for n := range data {
			if s, err := pickle.Decode(data[:n]); err == nil {
				t.Fatalf("%s: the first %d of %d bytes decode as %+v", v.ID, n, len(data), s)
			}
		}
		for _, op := range []byte(unknown) {
			bad := append(bytes.Clone(data[:len(data)-1]), op)
			if s, err := pickle.Decode(bad); err == nil {
				t.Errorf("%s with opcode 0x%02x decodes as %+v", v.ID, op, s)
			}
		}
	}
}

func TestDecodeText(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"not base64", "what? no!", `not a rendezvous state: "what? no!": illegal base64 data at input byte 4`},
		{"empty", "", "not a rendezvous state: at byte 0: it is empty"},
		{"large", strings.Repeat("A", 11184813), "not a rendezvous state: at byte 0: 11184813 bytes of base64, more than 11184812"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := pickle.DecodeText([]byte(tt.text))
			if err == nil || err.Error() != tt.want {
				t.Errorf("state %v, error %v\nwant %s", s, err, tt.want)
			}
		})
	}
	if _, err := pickle.Decode(make([]byte, pickle.MaxSize+1)); err == nil || !strings.Contains(err.Error(), "8388609 bytes, more than 8388608") {
		t.Errorf("of too many bytes: %v", err)
	}
}
