package postmortem

import (
	"encoding/json"
	"io/fs"
	"path/filepath"
	"strings"
	"time"
)

// maxAutopsies is how many of one attempt are read.
const maxAutopsies = 20

// An Autopsy is what the workers did when they hung, in short.
type Autopsy struct {
	Reason  string    `json:"reason"`
	Time    time.Time `json:"time,omitzero"`
	Summary string    `json:"summary"`
	File    string    `json:"file"` // of the text for people
	JSON    string    `json:"json"`
}

// autopsies reads autopsy.json, autopsy-2.json and so on.
func (rd *reader) autopsies(a *Attempt, entries []fs.DirEntry) {
	for _, e := range entries {
		name := e.Name()
		if !e.Type().IsRegular() || !isAutopsy(name) {
			continue
		}
		if len(a.Autopsies) == maxAutopsies {
			a.problem("there are more than %d autopsies; the rest is not shown", maxAutopsies)
			return
		}
		found := Autopsy{JSON: filepath.Join(a.Dir, name)}
		found.File = present(a.Dir, strings.TrimSuffix(name, ".json")+".txt", true)
		body, err := rd.file(found.JSON, maxAutopsy)
		if err == nil {
			err = found.parse(body)
		}
		if err != nil {
			a.problem("%s: %v", found.JSON, err)
		}
		if found.Reason+found.Summary != "" {
			a.Autopsies = append(a.Autopsies, found)
		}
	}
}

// isAutopsy reports whether a file is an autopsy rather than what belongs to one.
func isAutopsy(name string) bool {
	name, ok := strings.CutSuffix(name, ".json")
	if name == "autopsy" {
		return ok
	}
	n, isOne := strings.CutPrefix(name, "autopsy-")
	_, isNumber := decimal(n)
	return ok && isOne && isNumber
}

// parse takes in the part of the document that counts.
func (x *Autopsy) parse(body []byte) error {
	var doc Autopsy
	err := json.Unmarshal(body, &doc)
	x.Reason, x.Time, x.Summary = clean(doc.Reason), doc.Time, paragraph(doc.Summary)
	return err
}
