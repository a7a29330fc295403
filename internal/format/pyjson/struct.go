package pyjson

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// AppendStruct appends a struct as json.dumps prints a dict of its fields, under the
// names and in the order that the tags for encoding/json say. Every field is there:
// where omitempty or omitzero would leave one out, it is null, unless it is tagged
// pyjson:"optional". Times are RFC 3339 in UTC, with nine decimals. The fields are
// numbers, bools, strings, times, encoding.TextMarshalers, and structs, slices,
// pointers and interfaces of those.
func AppendStruct(dst []byte, v any) []byte { return appendValue(dst, reflect.ValueOf(v)) }

func appendValue(dst []byte, v reflect.Value) []byte {
	switch x := v.Interface().(type) {
	case time.Time:
		return append(dst, x.UTC().Format(`"2006-01-02T15:04:05.000000000Z"`)...)
	case encoding.TextMarshaler:
		text, _ := x.MarshalText()
		return AppendString(dst, string(text))
	}
	switch v.Kind() {
	case reflect.String:
		return AppendString(dst, Clean(v.String()))
	case reflect.Float64:
		return append(dst, formatFloat(v.Float())...)
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return append(dst, "null"...)
		}
		return appendValue(dst, v.Elem())
	case reflect.Slice:
		dst = append(dst, '[')
		for i := range v.Len() {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = appendValue(dst, v.Index(i))
		}
		return append(dst, ']')
	case reflect.Struct:
		return append(appendFields(append(dst, '{'), v), '}')
	}
	return fmt.Append(dst, v.Interface()) // a whole number or a bool
}

func appendFields(dst []byte, v reflect.Value) []byte {
	first := true
	for _, f := range reflect.VisibleFields(v.Type()) {
		key, omit, _ := strings.Cut(f.Tag.Get("json"), ",")
		field := v.FieldByIndex(f.Index)
		unknown := omit != "" && (field.IsZero() || field.Kind() == reflect.Slice && field.Len() == 0)
		if key == "" || key == "-" || unknown && f.Tag.Get("pyjson") == "optional" {
			continue
		}
		if !first {
			dst = append(dst, ", "...)
		}
		first = false
		dst = append(AppendString(dst, key), ": "...)
		if unknown {
			dst = append(dst, "null"...)
		} else {
			dst = appendValue(dst, field)
		}
	}
	return dst
}
