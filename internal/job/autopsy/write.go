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

// Text is the report for people: where the groups are, those that differ first,
// then each worker.
func (r *Report) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Autopsy: %s\n", cmp.Or(r.Reason, "on demand"))
	where := r.Host
	hosts := map[string]bool{r.Host: true}
	for i := range r.Workers {
		hosts[cmp.Or(r.Workers[i].Host, r.Host)] = true
	}
	if len(hosts) > 1 {
		where = fmt.Sprintf("%d hosts, seen from %s", len(hosts), r.Host)
	}
	fmt.Fprintf(&b, "%s on %s at %s, taken in %.2f s\n\n", text.Count(len(r.Workers), "worker"), where,
		r.Time.Format(time.RFC3339), r.Seconds)
	b.WriteString(r.Summary() + "\n")
	b.WriteString(r.Stacks())
	for i := range r.Workers {
		if w := &r.Workers[i]; cmp.Or(w.Host, r.Host) == r.Host { // other hosts keep the details of theirs
			w.text(&b)
		}
	}
	return text.Lines(b.String())
}

// Answer is the report as `muster dump` prints it: what differs, and the groups with their stacks.
func (r *Report) Answer() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s", r.Summary(), r.Stacks())
	for _, problem := range r.Problems() {
		fmt.Fprintf(&b, "\n%s\n", problem)
	}
	return text.Lines(b.String())
}

// Stacks is the groups with their stacks, those that differ first.
func (r *Report) Stacks() string {
	var b strings.Builder
	for _, g := range r.Groups() {
		note := ""
		if g.Odd {
			note = "  << differs"
		}
		fmt.Fprintf(&b, "\n%s %s%s\n", members(g), g.Name, note)
		if len(g.Lines) > 1 {
			fmt.Fprintf(&b, "    in lines %s\n", strings.Trim(fmt.Sprint(g.Lines), "[]"))
		}
		writeFrames(&b, "    ", g.Frames)
		for _, c := range g.Children {
			fmt.Fprintf(&b, "    %s\n", c)
		}
	}
	return b.String()
}

func writeFrames(b *strings.Builder, indent string, frames []Frame) {
	for _, f := range frames {
		fmt.Fprintf(b, "%s%s (%s:%d)\n", indent, f.Function, module(f.File), f.Line)
	}
}

// text writes one worker.
func (w *Worker) text(b *strings.Builder) {
	title := fmt.Sprintf("rank %d (local_rank %d, pid %d)", w.Rank, w.LocalRank, w.PID)
	if w.Rank < 0 {
		title = "process " + strconv.Itoa(w.PID)
	}
	fmt.Fprintf(b, "\n%s\n%s: %s\n", strings.Repeat("-", 60), title, w.State)
	if w.Command != "" {
		fmt.Fprintf(b, "  command: %s\n", w.Command)
	}
	for _, p := range w.Problems {
		fmt.Fprintf(b, "  missing: %s\n", p)
	}
	w.Native.text(b)
	w.Python.text(b, "  ")
	for _, same := range alike(w.Children, sameStacks) {
		fmt.Fprintf(b, "\n  %s: %s: %s\n", childNames(same), same[0].State, same[0].Command)
		same[0].Python.text(b, "    ")
	}
	for _, f := range w.Flight {
		if f.Bytes == 0 {
			fmt.Fprintf(b, "\n  flight recorder (%s): nothing: %s\n", f.Source, f.Problem)
			continue
		}
		fmt.Fprintf(b, "\n  flight recorder (%s): %d bytes", f.Source, f.Bytes)
		if file := cmp.Or(f.File, f.Worker); file != "" {
			b.WriteString(" in " + file)
		}
		if f.Problem != "" {
			b.WriteString("; " + f.Problem)
		}
		b.WriteByte('\n')
	}
}

func (p *Python) text(b *strings.Builder, indent string) {
	if p.Source != "" {
		fmt.Fprintf(b, "\n%sPython stacks, innermost call first (%s):\n", indent, p.Source)
	} else if len(p.Problems) > 0 {
		fmt.Fprintf(b, "\n%sno Python stacks:\n", indent)
	}
	for _, problem := range p.Problems {
		fmt.Fprintf(b, "%s  %s\n", indent, problem)
	}
	for _, t := range p.Threads {
		fmt.Fprintf(b, "%s  thread %s\n", indent, t.title())
		writeFrames(b, indent+"    ", t.Frames)
	}
}

func (t *Thread) title() string {
	parts := []string{cmp.Or(t.Name, t.ID)}
	if t.TID != 0 {
		parts = append(parts, "tid "+strconv.Itoa(t.TID))
	}
	if t.Main && t.Name != "MainThread" {
		parts = append(parts, "main")
	}
	if t.Active {
		parts = append(parts, "on CPU")
	}
	if t.GIL {
		parts = append(parts, "holds the GIL")
	}
	return strings.Join(parts, ", ")
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

func (n *Native) text(b *strings.Builder) {
	for _, p := range n.Problems {
		fmt.Fprintf(b, "  missing: %s\n", p)
	}
	if tids := n.Uninterruptible(); len(tids) > 0 {
		fmt.Fprintf(b, "  in uninterruptible sleep (state D), a kill may not end them: threads %s\n",
			strings.Trim(fmt.Sprint(tids), "[]"))
	}
	if len(n.Threads) == 0 {
		return
	}
	fmt.Fprintf(b, "  threads in the kernel, %d:\n", n.ThreadCount)
	for _, same := range alike(n.Threads, func(t *NativeThread) string { return t.Name + "\x00" + t.does() }) {
		var tids []int
		for _, t := range same {
			tids = append(tids, t.TID)
		}
		fmt.Fprintf(b, "    %s %s", text.Ranges(tids, ", "), same[0].Name)
		if len(tids) > 1 {
			fmt.Fprintf(b, ", %d threads", len(tids))
		}
		b.WriteString(": " + same[0].does() + "\n")
	}
}

// does says where in the kernel a thread is.
func (t *NativeThread) does() string {
	parts := []string{t.State, t.Syscall, t.WaitChannel}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ", ")
}
