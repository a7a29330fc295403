package autopsy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/format/text"
)

// MarshalJSON adds the groups and the summary to what was found.
func (r *Report) MarshalJSON() ([]byte, error) {
	type plain Report
	return json.Marshal(struct {
		*plain
		Summary string  `json:"summary"`
		Groups  []Group `json:"groups"`
	}{(*plain)(r), r.Summary(), r.Groups()})
}

// WriteDir writes the report as text and JSON, and the files of flight recorders
// beside it, and returns the paths. The files are named autopsy.txt, autopsy.json
// and autopsy-rank3-flight.pickle; where there are such files already, autopsy-2.txt
// and so on. Only their owner may read them. It is called once.
func (r *Report) WriteDir(dir string) (text, jsonPath string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", err
	}
	stem := filepath.Join(dir, "autopsy")
	var body *os.File
	for n := 1; body == nil; n++ {
		if n > 1 {
			stem = filepath.Join(dir, "autopsy-"+strconv.Itoa(n))
		}
		if body, err = create(stem + ".json"); err != nil && (!errors.Is(err, fs.ErrExist) || n == 1000) {
			return "", "", err
		}
	}
	errs := []error{r.writeFlights(stem), write(stem+".txt", []byte(r.Text()))}
	out := json.NewEncoder(body)
	out.SetIndent("", "  ")
	return stem + ".txt", stem + ".json", errors.Join(append(errs, out.Encode(r), body.Close())...)
}

// create makes a file that was not there, and follows no link to one that was.
func create(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// write makes a file with some content.
func write(path string, data []byte) error {
	file, err := create(path)
	if err == nil {
		_, err = file.Write(data)
		err = errors.Join(err, file.Close())
	}
	return err
}

// writeFlights writes what flight recorders said, each to a file of its own.
func (r *Report) writeFlights(stem string) error {
	var errs []error
	for i := range r.Workers {
		w := &r.Workers[i]
		for j := range w.Flight {
			f := &w.Flight[j]
			if len(f.data) == 0 {
				continue
			}
			ending := "-flight"
			if f.Source == "pipe" {
				ending = "-nccl"
			} else if j > 0 {
				ending = "-flight-" + strconv.Itoa(j+1)
			}
			if f.Source == "worker server" {
				ending += ".json"
			} else {
				ending += ".pickle"
			}
			path := stem + "-rank" + strconv.Itoa(w.Rank) + ending
			if w.Rank < 0 {
				path = stem + "-pid" + strconv.Itoa(w.PID) + ending
			}
			if err := write(path, f.data); err != nil {
				errs = append(errs, err)
				continue
			}
			f.File = filepath.Base(path)
		}
	}
	return errors.Join(errs...)
}

// Text is the report for people: the Answer, and what it is about.
func (r *Report) Text() string {
	return text.Lines(fmt.Sprintf("Autopsy: %s\n%s, seen from %s at %s, taken in %.2f s\n\n",
		cmp.Or(r.Reason, "on demand"), text.Count(len(r.Workers), "worker"), r.Host, r.Time.Format(time.RFC3339), r.Seconds)) + r.Answer()
}

// Answer is the report as `muster dump` prints it: what differs, and the groups with their stacks, those that differ
// first.
func (r *Report) Answer() string {
	var b strings.Builder
	b.WriteString(r.Summary() + "\n")
	r.stacks(&b)
	for _, problem := range r.Problems() {
		fmt.Fprintf(&b, "\n%s\n", problem)
	}
	return text.Lines(b.String())
}

// stacks writes the groups with their stacks.
func (r *Report) stacks(b *strings.Builder) {
	for _, g := range r.Groups() {
		note := ""
		if g.Odd {
			note = "  << differs"
		}
		fmt.Fprintf(b, "\n%s %s%s\n", members(g), g.Name, note)
		if len(g.Lines) > 1 {
			fmt.Fprintf(b, "    in lines %s\n", strings.Trim(fmt.Sprint(g.Lines), "[]"))
		}
		for _, f := range g.Frames {
			fmt.Fprintf(b, "    %s (%s:%d)\n", f.Function, module(f.File), f.Line)
		}
		for _, c := range g.Children {
			fmt.Fprintf(b, "    %s\n", c)
		}
	}
}

// childNames names child processes.
func childNames(list []*Process) string {
	if len(list) == 1 {
		return "child process " + strconv.Itoa(list[0].PID)
	}
	var pids []int
	for _, p := range list {
		pids = append(pids, p.PID)
	}
	slices.Sort(pids)
	return fmt.Sprintf("%d child processes, %s", len(pids), text.Ranges(pids, ", "))
}

// sameStacks is a key that processes have in common which do the same.
func sameStacks(p *Process) string {
	var key strings.Builder
	key.WriteString(p.State + "|" + p.Command)
	for _, t := range p.Python.Threads {
		key.WriteString("\n")
		stack(&key, t.Frames)
	}
	return key.String()
}
