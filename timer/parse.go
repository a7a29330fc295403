package timer

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"syscall"
	"unicode/utf8"

	"github.com/muster-run/muster/internal/format/pyjson"
)

// UnmarshalJSON reads one line of a FIFO, without its newline. It takes what Python's
// json.loads takes: keys in any order, the last of equal ones, unknown ones ignored;
// NaN and Infinity; lone surrogates (as their three-byte generalized UTF-8). A scope
// that is a number, true, false or null names the timer by its text.
// Source: _get_requests in file_based_local_timer.py.
func (r *Request) UnmarshalJSON(line []byte) (err error) {
	*r, err = parseRequest(line)
	return err
}

func parseRequest(line []byte) (Request, error) {
	if r, ok := parseFast(line); ok {
		return r, nil
	}
	return parseSlow(line)
}

// parseFast reads what PyTorch's client and ours write, where the scope needs no
// escapes. What it does not know it leaves to parseSlow, also every error.
func parseFast(line []byte) (Request, bool) {
	rest, ok1 := bytes.CutPrefix(line, []byte(`{"version": 1, "pid": `))
	pid, rest, ok2 := bytes.Cut(rest, []byte(`, "scope_id": "`))
	scope, rest, ok3 := bytes.Cut(rest, []byte(`", "expiration_time": `))
	at, rest, ok4 := bytes.Cut(rest, []byte(`, "signal": `))
	signal, ok5 := bytes.CutSuffix(rest, []byte(`}`))
	if !(ok1 && ok2 && ok3 && ok4 && ok5 && plainText(scope)) {
		return Request{}, false
	}
	n, ok1 := plainInteger(pid)
	sig, ok2 := plainInteger(signal)
	when, ok3 := plainNumber(at)
	r := Request{PID: n, ScopeID: string(scope), ExpirationTime: fromSeconds(when), Signal: syscall.Signal(sig)}
	return r, ok1 && n > 0 && ok2 && ok3
}

// plainText reports whether text, between quotes, is a JSON string that stands for itself.
func plainText(text []byte) bool {
	for _, b := range text {
		if b < ' ' || b > '~' || b == '"' || b == '\\' {
			return false
		}
	}
	return true
}

// plainInteger reads an integer of at most nine digits.
func plainInteger(text []byte) (int, bool) {
	digits := bytes.TrimPrefix(text, []byte("-"))
	if !isWhole(digits) || len(digits) > 9 {
		return 0, false
	}
	n, err := strconv.Atoi(string(text))
	return n, err == nil
}

// plainNumber reads a number without an exponent.
func plainNumber(text []byte) (float64, bool) {
	whole, part, point := bytes.Cut(bytes.TrimPrefix(text, []byte("-")), []byte("."))
	if !isWhole(whole) || point && !isDigits(part) {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(text), 64)
	return f, err == nil
}

// isWhole reports whether text is digits as JSON has them: without leading zeros.
func isWhole(text []byte) bool { return isDigits(text) && (len(text) == 1 || text[0] != '0') }

func isDigits(text []byte) bool {
	for _, b := range text {
		if b-'0' > 9 {
			return false
		}
	}
	return len(text) > 0
}

// parseSlow reads any line, and says what is wrong with it.
func parseSlow(line []byte) (r Request, err error) {
	if !utf8.Valid(line) {
		return r, errors.New("not UTF-8")
	}
	v, err := pyjson.Parse(line)
	if err != nil {
		return r, err
	}
	if v.Kind != pyjson.Object {
		return r, fmt.Errorf("want an object, not a %v", v.Kind)
	}
	get := func(key string) pyjson.Value {
		field, ok := v.Get(key)
		if !ok {
			err = errors.Join(err, fmt.Errorf("no %q", key))
			return pyjson.Value{}
		}
		return *field
	}
	pid, scope, at, signal := get("pid"), get("scope_id"), get("expiration_time"), get("signal")
	if err != nil {
		return r, err
	}
	errs := []error{nil, nil, nil, nil}
	r.PID, errs[0] = integer("pid", pid, 1, math.MaxInt32)
	r.ScopeID, errs[1] = scopeText(scope)
	when, err := number("expiration_time", at)
	r.ExpirationTime, errs[2] = fromSeconds(when), err
	n, err := integer("signal", signal, math.MinInt, math.MaxInt32)
	r.Signal, errs[3] = syscall.Signal(max(n, math.MinInt32)), err
	return r, errors.Join(errs...)
}

func integer(key string, v pyjson.Value, least, most int) (int, error) {
	if v.Kind != pyjson.Number {
		return 0, fmt.Errorf("%q is a %v: want an integer", key, v.Kind)
	}
	n, err := strconv.Atoi(v.Text)
	if errors.Is(err, strconv.ErrRange) && v.Text[0] == '-' && least == math.MinInt {
		return math.MinInt, nil
	}
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%q is %.32s: want an integer from %d to %d", key, v.Text, least, most)
	}
	return n, nil
}

func number(key string, v pyjson.Value) (float64, error) {
	if v.Kind != pyjson.Number {
		return 0, fmt.Errorf("%q is a %v: want a number", key, v.Kind)
	}
	f, err := strconv.ParseFloat(v.Text, 64)
	if errors.Is(err, strconv.ErrRange) {
		err = nil // an infinity, as in Python
	}
	return f, err
}

func scopeText(v pyjson.Value) (string, error) {
	switch v.Kind {
	case pyjson.String:
		return v.Text, nil
	case pyjson.Array, pyjson.Object:
		return "", fmt.Errorf("\"scope_id\" is a %v: want text", v.Kind)
	}
	return v.String(), nil
}

// salvage finds the requests in a line that is none: a writer that died within its
// line leaves a beginning, to which the next writer's line is joined. No string can
// hold `{"`, because its quote is escaped, so that is where an object begins.
func salvage(line []byte, found func(Request)) {
	begin := []byte(`{"`)
	for _, piece := range bytes.SplitN(line, begin, 65)[1:] {
		if r, err := parseRequest(slices.Concat(begin, piece)); err == nil {
			found(r)
		}
	}
}
