package pyjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxDepth is how deep lists and objects may nest; Python gives up near 1000.
const MaxDepth = 512

// A word is a number that Python writes and JSON does not have. Parse reads it as a
// number that no Float prints.
var (
	wordOrString = regexp.MustCompile(`(?s)"(?:[^"\\]|\\.)*"|NaN|-?Infinity`)
	numbers      = map[string]string{"NaN": "-0e999999", "Infinity": "1e999999", "-Infinity": "-1e999999"}
	words        = map[string]string{"-0e999999": "NaN", "1e999999": "Infinity", "-1e999999": "-Infinity"}
)

// Parse reads one document. It skips a byte order mark and reads bytes that are not UTF-8
// as U+FFFD; Python refuses both.
func Parse(data []byte) (Value, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if !json.Valid(data) {
		data = wordOrString.ReplaceAllFunc(data, func(found []byte) []byte {
			if number, ok := numbers[string(found)]; ok {
				return []byte(number)
			}
			return found
		})
		if err := json.Unmarshal(data, new(json.RawMessage)); err != nil {
			return Value{}, err
		}
	}
	r := reader{data, json.NewDecoder(bytes.NewReader(data))}
	r.UseNumber()
	return r.value(0)
}

// A reader reads a document that is known to be JSON.
type reader struct {
	data []byte
	*json.Decoder
}

func (r *reader) value(depth int) (Value, error) {
	before := r.InputOffset()
	token, err := r.Token()
	switch t := token.(type) {
	case bool:
		return True(t), nil
	case string:
		return Str(r.text(t, before)), nil
	case json.Number:
		if word, ok := words[t.String()]; ok {
			return Value{Kind: Number, Text: word}, nil
		}
		return Value{Kind: Number, Text: t.String()}, nil
	case json.Delim:
		if depth > MaxDepth {
			return Value{}, fmt.Errorf("nested deeper than %d", MaxDepth)
		}
		v := Value{Kind: Array}
		if t == '{' {
			v.Kind = Object
		}
		err = r.fill(&v, depth+1)
		return v, err
	}
	return Value{}, err
}

// fill reads what is in a list or an object. Of equal keys the last counts.
func (r *reader) fill(v *Value, depth int) error {
	places := map[string]int{}
	for r.More() {
		key := ""
		if v.Kind == Object {
			name, err := r.value(depth)
			if err != nil {
				return err
			}
			key = name.Text
		}
		item, err := r.value(depth)
		if err != nil {
			return err
		}
		if v.Kind == Array {
			v.Items = append(v.Items, item)
		} else if i, ok := places[key]; ok {
			v.Members[i].Value = item
		} else {
			places[key] = len(v.Members)
			v.Members = append(v.Members, Member{key, item})
		}
	}
	_, err := r.Token()
	return err
}

// surrogate finds a pair of surrogates, a lone one, or another escape.
var surrogate = regexp.MustCompile(`(?i)\\uD[89AB]..\\uD[C-F]..|\\u(D[89A-F]..)|\\.`)

// text returns the string that the decoder has read from an offset on, with the lone
// surrogates that encoding/json does not keep.
func (r *reader) text(decoded string, from int64) string {
	if !strings.ContainsRune(decoded, utf8.RuneError) {
		return decoded
	}
	spelt := r.data[from:r.InputOffset()]
	spelt = spelt[bytes.IndexByte(spelt, '"')+1 : len(spelt)-1]
	var text []byte
	add := func(part []byte) {
		var s string
		_ = json.Unmarshal(slices.Concat([]byte{'"'}, part, []byte{'"'}), &s) // the decoder has read it
		text = append(text, s...)
	}
	done := 0
	for _, at := range surrogate.FindAllSubmatchIndex(spelt, -1) {
		if at[2] < 0 {
			continue
		}
		add(spelt[done:at[0]])
		lone, _ := strconv.ParseUint(string(spelt[at[2]:at[3]]), 16, 16)
		text, done = appendSurrogate(text, rune(lone)), at[1]
	}
	add(spelt[done:])
	return string(text)
}
