package launch

import (
	"reflect"
	"testing"

	"github.com/muster-run/muster/agent"
)

// Every field of agent.Options is one of Config, and the agent gets it.
func TestOptions(t *testing.T) {
	for i := range reflect.TypeFor[agent.Options]().NumField() {
		want := reflect.TypeFor[agent.Options]().Field(i)
		var cfg Config
		field := reflect.ValueOf(&cfg).Elem().FieldByName(want.Name)
		if !field.IsValid() || field.Type() != want.Type {
			t.Errorf("Config has no %s %v", want.Name, want.Type)
			continue
		}
		switch want.Type.Kind() {
		case reflect.Bool:
			field.SetBool(true)
		case reflect.Int, reflect.Int64:
			field.SetInt(7)
		case reflect.Pointer:
			field.Set(reflect.New(want.Type.Elem()))
		case reflect.Slice:
			field.Set(reflect.MakeSlice(want.Type, 1, 1))
		default:
			t.Fatalf("%s: a %v", want.Name, want.Type)
		}
		options := cfg.options()
		if reflect.ValueOf(options).Field(i).IsZero() {
			t.Errorf("the agent does not get %s", want.Name)
		}
	}
}
