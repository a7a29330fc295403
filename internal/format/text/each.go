package text

import "reflect"

// Each replaces all exported strings in what a pointer points to.
func Each(pointer any, by func(string) string) { each(reflect.ValueOf(pointer), by) }

func each(v reflect.Value, by func(string) string) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			each(v.Elem(), by)
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			if field.CanSet() {
				each(field, by)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			each(v.Index(i), by)
		}
	case reflect.String:
		v.SetString(by(v.String()))
	}
}
