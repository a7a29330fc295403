// Package kmsg reads the kernel's messages, where this user may.
package kmsg

import (
	"strconv"
	"strings"
)

// After returns the text of a record of /dev/kmsg, "priority,number,microseconds,…;text", if it
// was written after since, in microseconds since boot.
func After(record string, since int64) (text string, ok bool) {
	head, text, ok := strings.Cut(record, ";")
	fields := strings.SplitN(head, ",", 4)
	if !ok || len(fields) < 3 {
		return "", false
	}
	at, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil || at < since {
		return "", false
	}
	text, _, _ = strings.Cut(text, "\n")
	return text, true
}
