package text

import "reflect"

// Each replaces all exported values of a type, such as string or time.Time, in what a pointer points to.
func Each[T any](pointer any, by func(T) T) { each(reflect.ValueOf(pointer), by) }

func each[T any](v reflect.Value, by func(T) T) {
	of := reflect.TypeFor[T]()
	if v.Kind() == of.Kind() && v.CanConvert(of) {
		v.Set(reflect.ValueOf(by(v.Convert(of).Interface().(T))).Convert(v.Type()))
		return
	}
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
	}
}
