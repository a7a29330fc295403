package pyjson_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/format/pyjson"
)

// documents are spelt as json.dumps spells them.
var documents = []string{
	`null`, `true`, `false`, `0`, `-1`, `1.5`, `NaN`, `Infinity`, `-Infinity`,
	`""`, `"a\"b\\c/\b\f\n\r\t\u0000\u001f\u007f"`,
	`"\u00e9\u20ac\ud83d\ude00"`,
	`"\ud800"`, `"\udc80x\ud800\ud800"`, `"\ude00\ud83d"`, // lone, and the wrong way round
	`[]`, `[1, [2, [3]], {}]`, `{}`,
	`{"b": 1, "a": {"z": [true, null]}, "": "x"}`,
	`{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "T\n", "timestamp": "1795233104"}}}`,
}

func TestRoundTrip(t *testing.T) {
	for _, doc := range documents {
		v, err := pyjson.Parse([]byte(doc))
		if err != nil {
			t.Errorf("Parse(%s): %v", doc, err)
		} else if got := v.String(); got != doc {
			t.Errorf("Parse(%s) prints %s", doc, got)
		}
	}
}

// Python itself is the judge, where there is one.
func TestAgainstPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3 in PATH")
	}
	tests := append([]string{
		" {\n\t\"a\" :1 ,\r\n\"b\":[ ] } ", `{"a": 1, "b": 2, "a": 3}`, `"\/\u00E9\uD83d\uDe00é😀"`, "\"\x7f\"",
		`[1e5x]`, `[01]`, `[1.]`, `[-]`, `[+1]`, `[.5]`, `[1,]`, `{"a":1,}`, `{a:1}`, `{"a" 1}`, `[1 2]`, `{} {}`, `"\x41"`, `"\u12g4"`, "\"\n\"", "\"\t\"",
		``, ` `, `[`, `{"a"`, `{"a":`, `"abc`, `"\u12`, `tru`, `nulL`, `'a'`, `-Infinit`, `[NaN, -Infinity]`,
	}, documents...)
	cmd := exec.Command(python, "-c", `
import json, sys
for doc in json.load(sys.stdin):
    try: print(json.dumps(json.loads(doc)))
    except ValueError: print("ERROR")
`)
	in, err := json.Marshal(tests)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	for i, doc := range tests {
		got := "ERROR"
		if v, err := pyjson.Parse([]byte(doc)); err == nil {
			got = v.String()
		}
		if got != want[i] {
			t.Errorf("%q: got %s, Python has %s", doc, got, want[i])
		}
	}
}

func TestParse(t *testing.T) {
	for doc, want := range map[string]string{
		`"\udc80\\ud800\ufffd\ud83d\u0041é\uD83D\uDE00"`:   `"\udc80\\ud800\ufffd\ud83dA\u00e9\ud83d\ude00"`,
		` {"\ud83d": 1 , "\ud83d" : ["\ud83d"]}`:           `{"\ud83d": ["\ud83d"]}`,
		"\xef\xbb\xbf\"caf\xe9\"":                          `"caf\ufffd"`,
		`["NaN", "\"-Infinity", NaN, -Infinity, Infinity]`: `["NaN", "\"-Infinity", NaN, -Infinity, Infinity]`,
	} {
		if v, err := pyjson.Parse([]byte(doc)); err != nil || v.String() != want {
			t.Errorf("%s: got %v, %v, want %s", doc, v, err, want)
		}
	}
	for doc, want := range map[string]string{
		`{"mess`:                 "unexpected end of JSON input",
		strings.Repeat("[", 600): "unexpected end of JSON input",
		`{"a": 1} trailing`:      "invalid character 't' after top-level value",
		`{"a": 1, b}`:            "invalid character 'b' looking for beginning of object key string",
		strings.Repeat("[", 600) + strings.Repeat("]", 600): "nested deeper than 512",
		strings.Repeat("[", 1e6):                            "invalid character '[' exceeded max depth",
	} {
		if v, err := pyjson.Parse([]byte(doc)); err == nil || err.Error() != want {
			t.Errorf("%.40s: got %v, %v, want %s", doc, v, err, want)
		}
	}
}

func list(items ...pyjson.Value) pyjson.Value { return pyjson.Value{Kind: pyjson.Array, Items: items} }

func TestBuild(t *testing.T) {
	v := pyjson.Dict(pyjson.Member{Key: "a", Value: pyjson.Int(1)})
	v.Set("b", list(pyjson.Float(1), pyjson.Float(1e16), pyjson.Float(0.1), pyjson.Float(1.5e-5), pyjson.True(true), pyjson.Value{}))
	v.Set("a", pyjson.Str("bad \xff\xed\xa0\x80"))
	if got, want := v.String(), `{"a": "bad \ufffd\ud800", "b": [1.0, 1e+16, 0.1, 1.5e-05, true, null]}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := pyjson.Clean("x\xff\xed\xa0\x80y"), "x\ufffd\ufffdy"; got != want {
		t.Errorf("Clean: got %q, want %q", got, want)
	}
	l := list()
	l.Set("a", pyjson.Int(1))
	if diff := cmp.Diff(list(), l); diff != "" {
		t.Errorf("Set changed a list:\n%s", diff)
	}
}

func FuzzParse(f *testing.F) {
	for _, doc := range documents {
		f.Add([]byte(doc))
	}
	f.Add([]byte(strings.Repeat(`{"a":[`, 300)))
	f.Add([]byte("\xef\xbb\xbf{\"k\": \"\xff\"}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := pyjson.Parse(data)
		if err != nil {
			// What Go takes, we take, depth apart. (We take more: NaN.)
			if utf8.Valid(data) && json.Valid(data) && !strings.Contains(err.Error(), "nested deeper") {
				t.Fatalf("%q is JSON, but: %v", data, err)
			}
			return
		}
		printed := v.String()
		again, err := pyjson.Parse([]byte(printed))
		if err != nil {
			t.Fatalf("%q prints as %q, which does not parse: %v", data, printed, err)
		}
		if got := again.String(); got != printed {
			t.Fatalf("%q prints as %q, then as %q", data, printed, got)
		}
		for _, c := range []byte(printed) {
			if c < ' ' || c > '~' {
				t.Fatalf("%q prints as %q, which is not ASCII", data, printed)
			}
		}
	})
}

func TestAppendStruct(t *testing.T) {
	type in struct {
		B bool `json:"b"`
	}
	type deep struct {
		Text string   `json:"text"`
		Null string   `json:"null,omitempty"`
		Gone string   `json:"gone,omitempty" pyjson:"optional"`
		List []string `json:"list"`
		None []string `json:"none,omitempty"`
		in
		At     time.Time `json:"at"`
		Never  time.Time `json:"never,omitzero"`
		To     *int      `json:"to"`
		Any    any       `json:"any"`
		Hidden error     `json:"-"`
		Share  float64   `json:"share"`
		Items  []in      `json:"items"`
	}
	v := deep{Text: "é\x1b", List: []string{"a", "\u009b"}, At: time.Unix(1, 5), Any: in{true}, Share: 30, Items: []in{{}, {true}}}
	want := `{"text": "\u00e9\u001b", "null": null, "list": ["a", "\u009b"], "none": null, "b": false, "at": "1970-01-01T00:00:01.000000005Z", "never": null, ` +
		`"to": null, "any": {"b": true}, "share": 30.0, "items": [{"b": false}, {"b": true}]}`
	if got := string(pyjson.AppendStruct(nil, &v)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
