package runline

import (
	"testing"
	"time"

	"github.com/muster-run/muster/launch"
)

// Each option's value fits the field that it goes into.
func TestOptionFields(t *testing.T) {
	fits := map[kind]func(any) bool{
		kindText:  is[*string],
		kindInt:   is[*int],
		kindFloat: is[*time.Duration],
		kindList:  is[*[]string],
		kindFlag:  is[*bool],
	}
	fields := map[any]string{}
	var cfg launch.Config
	for i := range options {
		o := &options[i]
		if o.to == nil {
			continue
		}
		field := o.to(&cfg)
		if fit := fits[o.kind]; fit == nil || !fit(field) {
			t.Errorf("--%s cannot be put into a %T", o.name, field)
		}
		if other := fields[field]; other != "" {
			t.Errorf("--%s and --%s go into one field", o.name, other)
		}
		fields[field] = o.name
	}
}

func is[T any](v any) bool { _, ok := v.(T); return ok }
