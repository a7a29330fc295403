package timer_test

import (
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/muster-run/muster/timer"
)

func req(pid int, scope string, at float64, sig syscall.Signal) timer.Request {
	return timer.Request{PID: pid, ScopeID: scope, ExpirationTime: timer.FromSeconds(at), Signal: sig}
}

func TestParseRequest(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	const rest = `, "pid": 7, "scope_id": "s", "expiration_time": 2.5, "signal": 9}`
	tests := []struct {
		name, line string
		want       timer.Request
		err        string
	}{
		{name: "as written", line: `{"version": 1` + rest, want: req(7, "s", 2.5, 9)},
		{name: "without blanks", line: `{"pid":7,"scope_id":"s","expiration_time":2.5,"signal":9}`, want: req(7, "s", 2.5, 9)},
		{name: "with blanks", line: "\t { \"pid\" : 7 , \"scope_id\" :\"s\", \"expiration_time\": 2.5,\r \"signal\":9 } \r", want: req(7, "s", 2.5, 9)},
		{name: "any order", line: `{"signal": 15, "expiration_time": 1e-07, "scope_id": "", "pid": 1}`, want: req(1, "", 1e-7, 15)},
		{name: "another version", line: `{"version": 2` + rest, want: req(7, "s", 2.5, 9)},
		{name: "version text", line: `{"version": "2.0"` + rest, want: req(7, "s", 2.5, 9)},
		{name: "more fields", line: `{"run_id": "x", "more": {"pid": [1, null]}` + rest, want: req(7, "s", 2.5, 9)},
		{name: "last of equal keys", line: `{"pid": 3` + rest, want: req(7, "s", 2.5, 9)},
		{name: "integer time", line: `{"pid": 7, "scope_id": "s", "expiration_time": 1700000000, "signal": 9}`, want: req(7, "s", 1.7e9, 9)},
		{name: "release", line: `{"pid": 7, "scope_id": "s", "expiration_time": -1, "signal": 0}`, want: req(7, "s", -1, 0)},
		{name: "minus zero", line: `{"pid": 7, "scope_id": "s", "expiration_time": -0.0, "signal": 0}`, want: req(7, "s", 0, 0)},
		{name: "large", line: `{"pid": 7, "scope_id": "s", "expiration_time": 1e+22, "signal": 9}`, want: req(7, "s", 1e22, 9)},
		{name: "larger than a float", line: `{"pid": 7, "scope_id": "s", "expiration_time": 1e400, "signal": 9}`, want: req(7, "s", inf, 9)},
		{name: "larger integer", line: `{"pid": 7, "scope_id": "s", "expiration_time": 1` + strings.Repeat("0", 400) + `, "signal": 9}`, want: req(7, "s", inf, 9)},
		{name: "infinity", line: `{"pid": 7, "scope_id": "s", "expiration_time": Infinity, "signal": 9}`, want: req(7, "s", inf, 9)},
		{name: "minus infinity", line: `{"pid": 7, "scope_id": "s", "expiration_time": -Infinity, "signal": 9}`, want: req(7, "s", -inf, 9)},
		{name: "not a number", line: `{"pid": 7, "scope_id": "s", "expiration_time": NaN, "signal": 9}`, want: req(7, "s", nan, 9)},
		{name: "negative signal", line: `{"pid": 7, "scope_id": "s", "expiration_time": 1, "signal": -9}`, want: req(7, "s", 1, -9)},
		{name: "very negative signal", line: `{"pid": 7, "scope_id": "s", "expiration_time": 1, "signal": -` + strings.Repeat("9", 30) + `}`, want: req(7, "s", 1, math.MinInt32)},
		{name: "escapes", line: `{"pid": 7, "scope_id": "\u00e9\"\\\n\u6f22\ud83d\ude00\/", "expiration_time": 1, "signal": 9}`, want: req(7, "é\"\\\n漢😀/", 1, 9)},
		{name: "escaped key", line: `{"\u0070id": 7, "scope_id": "s", "expiration_time": 1, "signal": 9}`, want: req(7, "s", 1, 9)},
		{name: "lone surrogate", line: `{"pid": 7, "scope_id": "\ud83d", "expiration_time": 1, "signal": 9}`, want: req(7, "\xed\xa0\xbd", 1, 9)},
		{name: "UTF-8", line: `{"pid": 7, "scope_id": "漢", "expiration_time": 1, "signal": 9}`, want: req(7, "漢", 1, 9)},
		{name: "scope is a number", line: `{"pid": 7, "scope_id": 12, "expiration_time": 1, "signal": 9}`, want: req(7, "12", 1, 9)},
		{name: "scope is null", line: `{"pid": 7, "scope_id": null, "expiration_time": 1, "signal": 9}`, want: req(7, "null", 1, 9)},

		{name: "empty", line: ``, err: "unexpected end of JSON input"},
		{name: "cut off", line: `{"version": 1, "pid": 7, "scope_id": "s", "expi`, err: "unexpected end of JSON input"},
		{name: "text", line: `hello`, err: "invalid character 'h' looking for beginning of value"},
		{name: "list", line: `[1]`, err: "want an object, not a list"},
		{name: "fields are missing", line: `{"version": 1, "pid": 7}`, err: "no \"scope_id\"\nno \"expiration_time\"\nno \"signal\""},
		{name: "two objects", line: `{"pid": 7}{"pid": 7}`, err: "invalid character '{' after top-level value"},
		{name: "not UTF-8", line: "{\"pid\": 7, \"scope_id\": \"\xff\", \"expiration_time\": 1, \"signal\": 9}", err: "not UTF-8"},
		{name: "wrong kinds", line: `{"pid": "7", "scope_id": ["s"], "expiration_time": "1", "signal": null}`,
			err: "\"pid\" is a string: want an integer\n\"scope_id\" is a list: want text\n\"expiration_time\" is a string: want a number\n\"signal\" is a null: want an integer"},
		{name: "pid 0", line: `{"pid": 0, "scope_id": "s", "expiration_time": 1, "signal": 9}`, err: `"pid" is 0: want an integer from 1 to 2147483647`},
		{name: "pid -1", line: `{"pid": -1, "scope_id": "s", "expiration_time": 1, "signal": 9}`, err: `"pid" is -1: want an integer from 1 to 2147483647`},
		{name: "pid too large", line: `{"pid": 4294967297, "scope_id": "s", "expiration_time": 1, "signal": 9}`, err: `"pid" is 4294967297: want an integer from 1 to 2147483647`},
		{name: "pid is a float", line: `{"pid": 7.0, "scope_id": "s", "expiration_time": 1, "signal": 9}`, err: `"pid" is 7.0: want an integer from 1 to 2147483647`},
		{name: "pid is true", line: `{"pid": true, "scope_id": "s", "expiration_time": 1, "signal": 9}`, err: `"pid" is a bool: want an integer`},
		{name: "leading zero", line: `{"pid": 07, "scope_id": "s", "expiration_time": 1, "signal": 9}`, err: "invalid character '7' after object key:value pair"},
		{name: "hexadecimal", line: `{"pid": 7, "scope_id": "s", "expiration_time": 0x1p4, "signal": 9}`, err: "invalid character 'x' after object key:value pair"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := timer.ParseRequest([]byte(tt.line))
			if tt.err != "" {
				if err == nil || err.Error() != tt.err {
					t.Errorf("got %v, error %v, want %s", got, err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateNaNs()); diff != "" {
				t.Error("(-want +got)\n" + diff)
			}
		})
	}
}

// What PyTorch's client wrote is read, and written the same.
func TestVectors(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "vectors-2.15.0.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Lines []struct{ Name, Hex, Text string }
	}
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, v := range vectors.Lines {
		line := []byte(v.Text)
		if v.Hex != "" {
			if line, err = hex.DecodeString(v.Hex); err != nil {
				t.Fatal(err)
			}
		}
		for part := range strings.Lines(string(line)) {
			part = strings.TrimSuffix(part, "\n")
			r, err := timer.ParseRequest([]byte(part))
			if err != nil {
				t.Errorf("%s: %v", v.Name, err)
				continue
			}
			read++
			want := part
			switch v.Name {
			case "acquire_int_expiration": // Python writes whole numbers that it was given as such
				want = strings.Replace(part, "1700000000", "1700000000.0", 1)
			case "acquire_large_float", "acquire_inf", "acquire_nan": // all of them never come
				want = strings.NewReplacer("1e+22", "253402300800.0", "Infinity", "253402300800.0", "NaN", "253402300800.0").Replace(part)
			}
			if got := r.String(); got != want {
				t.Errorf("%s: got %s, want %s", v.Name, got, want)
			}
		}
	}
	if read != 14 {
		t.Errorf("read %d lines of the vectors, want 14", read)
	}
}

func FuzzParse(f *testing.F) {
	for _, line := range []string{
		`{"version": 1, "pid": 27237, "scope_id": "scope_one", "expiration_time": 1700000000.5, "signal": 9}`,
		`{"version": 1, "pid": 27237, "scope_id": "scope_one", "expiration_time": -1, "signal": 0}`,
		`{"pid":7,"scope_id":"\u00e9\"\\\n\ud83d","expiration_time":NaN,"signal":-9,"x":{"y":[1,null]}}`,
		`{"signal": 9, "signal": 1e2, "pid": 007, "expiration_time": -Infinity}`,
		`{"pid": 1, "scope_id": "{\"", "expiration_time": 1e400, "signal": 2147483648}`,
		`{"version": 1, "pi{"version": 1, "pid": 1, "scope_id": "a", "expiration_time": 0.1e-7, "signal": 1}`,
		"", "{", `{"pid": -`, "\x00\xff",
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		fast, ok := timer.ParseFast(line)
		slow, err := timer.ParseSlow(line)
		if !ok {
			return
		}
		if err != nil {
			t.Fatalf("%q: read as %v, but %v", line, fast, err)
		}
		if diff := cmp.Diff(slow, fast, cmpopts.EquateNaNs()); diff != "" {
			t.Fatalf("%q (-slow +fast)\n%s", line, diff)
		}
		// What we write means the same.
		again, err := timer.ParseRequest(fast.AppendJSON(nil))
		if err != nil {
			t.Fatalf("%q: written as %s: %v", line, fast, err)
		}
		if diff := cmp.Diff(fast, again, cmpopts.EquateNaNs()); diff != "" {
			t.Fatalf("%q: written as %s (-want +got)\n%s", line, fast, diff)
		}
	})
}
