package runline

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/test/golden"
)

// The keywords of muster.run in Python are made from the table of options, with their types.
func TestPythonOptions(t *testing.T) {
	golden.Is(t, "../../../../python/muster/_options.py", pythonOptions())
}

func pythonOptions() string {
	var b strings.Builder
	b.WriteString(`"""The options of muster run as keywords. Written by: go test ./cmd/muster/internal/runline -run Python -update"""

from __future__ import annotations

from os import PathLike
from typing import Literal, Mapping, Optional, Sequence, TypedDict, Union


class Options(TypedDict, total=False):
`)
	for i := range options {
		o := &options[i]
		switch {
		case o.group == groupOther: // they start nothing
		case o.name == "nproc-per-node": // a parameter of its own
		default:
			fmt.Fprintf(&b, "    %s: %s  # %s\n", strings.ReplaceAll(o.name, "-", "_"), pythonType(o), o.help)
		}
	}
	b.WriteString("\n\n# What sets an option to False.\nVARIABLES = {")
	separator := ""
	for i := range options {
		if o := &options[i]; o.kind == kindFlag && o.group != groupOther {
			fmt.Fprintf(&b, "%s%q: %q", separator, strings.ReplaceAll(o.name, "-", "_"), o.env)
			separator = ", "
		}
	}
	return b.String() + "}\n"
}

// pythonType is what an option takes in Python: more than text where the text stands for
// something that Python has.
func pythonType(o *option) string {
	switch {
	case len(o.choices) > 0:
		quoted := make([]string, len(o.choices))
		for i, choice := range o.choices {
			quoted[i] = strconv.Quote(choice)
		}
		return "Literal[" + strings.Join(quoted, ", ") + "]"
	case o.kind == kindFlag:
		return "bool"
	case o.name == "env":
		return "Union[str, Mapping[str, Optional[object]], Sequence[object]]"
	case o.name == "env-file":
		return `Union[str, "PathLike[str]", Sequence[Union[str, "PathLike[str]"]]]`
	case o.arg == "STD":
		return "Union[int, str, Mapping[int, int]]"
	case o.arg == "SECONDS": // or a text with units
		return "Union[float, str]"
	case o.kind == kindInt:
		return "int"
	case o.arg == "K=V,...":
		return "Union[str, Mapping[str, object]]"
	case strings.HasSuffix(o.arg, ",..."):
		return "Union[str, Sequence[object]]"
	case o.arg == "DIR", o.arg == "FILE", o.arg == "PATH":
		return `Union[str, "PathLike[str]"]`
	case strings.ContainsAny(o.arg, "|") || strings.HasSuffix(o.arg, "PORT"), o.arg == "SIZE":
		return "Union[int, str]"
	}
	return "str"
}
