package runline

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/internal/wire/auth"
)

// environment reads --env-file and --env, whose entries come last and so count.
func (v values) environment(lookup func(string) (string, bool)) (entries []string, errs []error) {
	for _, file := range v.list("env-file") {
		text, err := readHostFile(file)
		if err != nil {
			errs = append(errs, fmt.Errorf("--env-file: %w", err))
			continue
		}
		for i, line := range strings.Split(string(text), "\n") {
			line = strings.TrimSuffix(line, "\r")
			if trimmed := strings.TrimSpace(line); trimmed == "" || trimmed[0] == '#' {
				continue
			}
			entries = append(entries, line)
			if !strings.Contains(line, "=") {
				errs = append(errs, fmt.Errorf("%s:%d: a line without '='; want KEY=VALUE", file, i+1))
			} else if err := checkVariable(line); err != nil {
				errs = append(errs, fmt.Errorf("%s:%d: %w", file, i+1, err))
			}
		}
	}
	for _, entry := range v.list("env") {
		err := checkVariable(entry)
		if err == nil && !strings.Contains(entry, "=") {
			value, ok := lookup(entry)
			if !ok {
				err = fmt.Errorf("%s is not set here; set it, or give a value: --env %s=VALUE", entry, entry)
			}
			entry += "=" + value
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--env: %w", err))
		}
		entries = append(entries, entry)
	}
	return entries, errs
}

// setsOption reports whether a variable is for this start of muster only. Workers inherit PET_ variables, as
// torchrun's do, but those of muster's own options would change the jobs that they start.
func setsOption(entry string) bool {
	name, _, _ := strings.Cut(entry, "=")
	return name == envInterpreter || name == envFiles || name == envAdopted ||
		findOption(func(o *option) bool { return o.own && o.env == name && name != "" }) != nil
}

// checkVariable says what is wrong with K=V or K as a worker's variable. It never shows V.
func checkVariable(entry string) error {
	name, _, _ := strings.Cut(entry, "=")
	odd := name == "" || strings.ContainsFunc(name, func(c rune) bool { return unicode.IsSpace(c) || !unicode.IsPrint(c) })
	switch own := findOption(func(o *option) bool { return o.env == name && name != "" }); {
	case strings.HasPrefix(name, "export "):
		return fmt.Errorf("%s is not a variable name; leave export out", console.Quote(name))
	case odd:
		return fmt.Errorf("%s is not a variable name; want KEY=VALUE", console.Quote(name))
	case strings.Contains(entry, "\x00"):
		return fmt.Errorf("the value of %s has a NUL byte, which no variable can have; remove it", name)
	case agent.SetsVariable(name):
		return fmt.Errorf("muster sets %s for each worker, so it cannot be given; leave it out", name)
	case own != nil:
		return fmt.Errorf("muster reads %s itself, workers do not; use --%s", name, own.name)
	case name == auth.TokenVariable:
		return fmt.Errorf("workers do not get %s; set it in muster's own environment", name)
	}
	return nil
}
