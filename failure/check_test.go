package failure_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/muster-run/muster/failure"
)

// checkFailure checks what holds for every failure and its report, whatever
// the worker wrote.
func checkFailure(t *testing.T, f *failure.ProcessFailure) {
	t.Helper()
	for name, s := range map[string]string{"cause": f.Cause, "hint": f.Hint} {
		if strings.ContainsFunc(s, unicode.IsControl) || !utf8.ValidString(s) || utf8.RuneCountInString(s) > 403 {
			t.Errorf("%s is not one decent line: %q", name, s)
		}
	}
	if f.Cause == "" || f.Message == "" {
		t.Errorf("cause %q, message %q", f.Cause, f.Message)
	}
	if !json.Valid(f.ErrorFileData()) && !bytes.Contains(f.ErrorFileData(), []byte("NaN")) && !bytes.Contains(f.ErrorFileData(), []byte("Infinity")) {
		t.Errorf("error file data is not JSON: %s", f.ErrorFileData())
	}
	report := failure.NewReport(failure.ReportConfig{Title: "t\x1b[31m", Host: "h"}, []*failure.ProcessFailure{f, f})
	text := text(t, report) + block(t, report)
	if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && r != '\t' && unicode.IsControl(r) }); i >= 0 || !utf8.ValidString(text) {
		t.Errorf("report has a control character or is not UTF-8: %q", text)
	}
	if len(text) > 256<<10 {
		t.Errorf("report has %d bytes", len(text))
	}
	if n := strings.Count(text, "\n[0]:\n"); n < 1 {
		t.Errorf("report has %d entries [0]:\n%s", n, text)
	}
	if b := written(t, report.WriteJSON); !json.Valid([]byte(b)) || strings.Count(b, "\n") != 1 {
		t.Errorf("JSON report is not one line of JSON: %s", b)
	}
}
