package health

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/safeopen"
	"github.com/muster-run/muster/internal/sleep"
	"github.com/muster-run/muster/internal/text"
)

// What a search may cost. A host reads the ends of its log files, one search after the other,
// and rests after each so that all of them take a fifth of one CPU at most.
const (
	maxContains = 200                    // bytes of the text
	searchBytes = 64 << 20               // of one host's files
	searchTime  = time.Second            // for them
	searchWait  = 500 * time.Millisecond // for the search before, and its rest
	searchRest  = 4                      // times as long as the search took
	searchAll   = 5 * time.Second        // for all hosts
	maxFound    = 256 << 10              // bytes of one host's answer
	maxFoundAll = 2 << 20                // of all
)

// A searcher lets through one search at a time.
type searcher struct {
	turn chan struct{} // of capacity 1: it is full while somebody searches
	rest time.Time     // until when nobody does; only who has the turn touches it
}

// begin waits for the turn. It returns what ends the search, nil if others search for too long.
func (s *searcher) begin(ctx context.Context) (end func()) {
	ctx, cancel := context.WithTimeout(ctx, searchWait)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	if wait := time.Until(s.rest); wait > searchWait || wait > 0 && sleep.For(ctx, wait) != nil {
		<-s.turn
		return nil
	}
	began := time.Now()
	return func() {
		s.rest = time.Now().Add(searchRest * time.Since(began))
		<-s.turn
	}
}

// search answers /v1/logs?contains=TEXT with the lines of logs that have a text: of each stream the
// last ones, as `muster logs` prints them. Lines that begin with # say what was not searched.
func (s *Server) search(r *http.Request) reply {
	v := r.URL.Query()
	contains := v.Get("contains")
	q, want, _, err := parseLogQuery(v)
	switch {
	case err != nil:
		return textReply(http.StatusBadRequest, "%v", err)
	case contains == "" || len(contains) > maxContains:
		return textReply(http.StatusBadRequest, "contains=%.20q… has %d bytes; want a text of 1 to %d", contains, len(contains), maxContains)
	case v.Has("lines") && (q.Lines < 1 || q.Lines > maxLogLines):
		return textReply(http.StatusBadRequest, "lines=%q is not a number from 1 to %d", v.Get("lines"), maxLogLines)
	}
	snap, _ := s.state.get(r.Context(), s.patience)
	if snap == nil {
		return busy("the state of the job is not known yet")
	}
	end := s.searches.begin(r.Context())
	if end == nil {
		return busy("others search in these logs")
	}
	found := find{text: []byte(contains), lines: cmp.Or(max(q.Lines, 0), 200), until: time.Now().Add(searchTime)}
	own := found.in(slices.DeleteFunc(slices.Clone(snap.source.Workers), func(w Worker) bool { return !want.Has(w.Rank) }), q)
	end()
	if !s.wholeJob(r) {
		return reply{http.StatusOK, plain, own}
	}
	return reply{http.StatusOK, plain, s.searchOthers(r.Context(), v, snap.source.Host.GroupRank, own)}
}

// searchOthers adds what other hosts have found to what this one has, in order of group rank.
func (s *Server) searchOthers(ctx context.Context, q url.Values, rank int, own []byte) []byte {
	ctx, cancel := context.WithTimeout(ctx, searchAll)
	defer cancel()
	q.Set("scope", "host")
	answers, notes := map[int][]byte{rank: own}, []string{}
	ranks, owner := s.otherRanks(ctx), s.owners(ctx)
	s.askEach(ctx, ranks, http.MethodGet, "/v1/logs?"+q.Encode(), askTime, func(rank int, body []byte, err error) {
		if err == nil && len(body) > 2*maxFound {
			err = fmt.Errorf("its answer is too large: it has %s", text.Size(len(body)))
		}
		answers[rank] = foundBy(rank, body, owner)
		if err != nil {
			answers[rank] = fmt.Appendf(nil, "# the host with group rank %d was not searched: %s\n", rank, text.Line(err.Error(), 300))
		}
	})
	var all []byte
	for _, rank := range slices.Sorted(maps.Keys(answers)) {
		if len(all)+len(answers[rank]) > maxFoundAll {
			notes = append(notes, fmt.Sprintf("# there is more from the host with group rank %d; ask for fewer lines or ranks\n", rank))
			continue
		}
		all = append(all, answers[rank]...)
	}
	for _, note := range notes {
		all = append(all, note...)
	}
	return all
}

// owners returns on which host, by group rank, a rank runs. Of two that say so it is this one, or
// the one with the lower group rank.
func (s *Server) owners(ctx context.Context) map[int]int {
	owner := map[int]int{}
	add := func(state *State) {
		for i := range state.Workers {
			if _, ok := owner[state.Workers[i].Rank]; !ok {
				owner[state.Workers[i].Rank] = state.Host.GroupRank
			}
		}
	}
	if own, _ := s.state.get(ctx, s.patience); own != nil {
		add(own.source)
	}
	if o := s.whatOthersSay(ctx); o != nil {
		for _, rank := range slices.Sorted(maps.Keys(o.heard)) {
			if state := o.heard[rank].state; state != nil {
				add(state)
			}
		}
	}
	return owner
}

// foundBy returns what another host has found, with each line as this host writes its own. Lines
// of ranks that do not run there are left out; until it has said which do, only those of ranks that
// run on other hosts.
func foundBy(host int, body []byte, owner map[int]int) []byte {
	known := slices.Contains(slices.Collect(maps.Values(owner)), host)
	var found []byte
	alien := 0
	for line := range strings.Lines(string(body)) {
		line = text.Line(line, maxLine+50) // and what it begins with
		begin, _, ok := strings.Cut(strings.TrimPrefix(line, "# "), "]: ")
		rank, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(begin, "["), " err"))
		ok = ok && err == nil && begin[0] == '['
		if at, has := owner[rank]; ok && (has && at != host || !has && known) || !ok && !strings.HasPrefix(line, "# ") {
			alien++
			continue
		}
		found = append(append(found, line...), '\n')
	}
	if alien > 0 {
		found = fmt.Appendf(found, "# the host with group rank %d sent %s that no rank of it has written; left out\n", host, text.Count(alien, "line"))
	}
	return found
}

// find is a search in the logs of one host.
type find struct {
	text  []byte
	lines int       // of each stream
	until time.Time // for all of them
}

// in searches in the files of workers, and returns the lines that it finds.
func (f *find) in(workers []Worker, q LogQuery) []byte {
	type stream struct{ prefix, path string }
	var streams []stream
	for i := range workers {
		w := &workers[i]
		if q.Stdout && w.Stdout != "" {
			streams = append(streams, stream{fmt.Sprintf("[%d]: ", w.Rank), w.Stdout})
		}
		if q.Stderr && w.Stderr != "" && (w.Stderr != w.Stdout || !q.Stdout) {
			streams = append(streams, stream{fmt.Sprintf("[%d err]: ", w.Rank), w.Stderr})
		}
	}
	var all, notes []byte
	for i, s := range streams {
		share := time.Until(f.until) / time.Duration(len(streams)-i)
		found, searched, size, hole, err := f.file(s.path, searchBytes/int64(len(streams)), time.Now().Add(share))
		left := maxFound - len(all)
		for i, line := range slices.Backward(found) { // the last ones have room first
			if left -= len(s.prefix) + len(line) + 1; left < 0 {
				notes = fmt.Appendf(notes, "# %sthere is more\n", s.prefix)
				found = found[i+1:]
				break
			}
		}
		for _, line := range found {
			all = append(append(append(all, s.prefix...), line...), '\n')
		}
		switch {
		case err != nil:
			notes = fmt.Appendf(notes, "# %snot searched: %s\n", s.prefix, text.Line(err.Error(), 300))
		case hole:
			notes = fmt.Appendf(notes, "# %ssearched %s of %s; muster logs also shows what --log-max-size has cut off\n", s.prefix, text.Size(searched), text.Size(size))
		case searched < size:
			notes = fmt.Appendf(notes, "# %ssearched %s of %s\n", s.prefix, text.Size(searched), text.Size(size))
		}
	}
	if len(streams) == 0 && len(workers) > 0 {
		notes = append(notes, "# no logs are kept in files; start the job with --redirects or --tee\n"...)
	}
	return append(all, notes...)
}

// file returns the last lines with the text in the last limit bytes of a file, cleaned as those of a
// State. It follows no symbolic link and reads regular files only. A hole, which rotation leaves at
// the beginning, is not searched.
func (f *find) file(path string, limit int64, until time.Time) (found []string, searched, size int64, hole bool, err error) {
	file, info, err := safeopen.Open(path)
	if err != nil {
		return nil, 0, 0, false, err
	}
	defer file.Close()
	size = info.Size()
	data, hole := dataAfterHole(file)
	from := max(data, size-limit)
	in := bufio.NewReaderSize(io.NewSectionReader(file, from, size-from), 64<<10)
	for n := 0; n%64 != 0 || time.Now().Before(until); n++ {
		line, err := in.ReadSlice('\n') // a longer line comes in pieces
		if hole && searched == 0 {
			line = bytes.TrimLeft(line, "\x00") // the hole's last bytes are in a block with others
		}
		searched += int64(len(line))
		if bytes.Contains(line, f.text) {
			if len(found) >= 2*f.lines {
				found = slices.Delete(found, 0, f.lines)
			}
			before := ""
			if at := bytes.Index(line, f.text); at > maxLine/2 {
				before, line = "…", line[at-maxLine/2:]
			}
			found = append(found, before+string(line[:min(len(line), 4*maxLine)]))
		}
		if err == io.EOF {
			break
		} else if err != nil && err != bufio.ErrBufferFull {
			return nil, 0, 0, false, err
		}
	}
	found = found[max(0, len(found)-f.lines):]
	for i, line := range found {
		found[i] = text.Line(strings.Trim(line, "\r\n\x00"), maxLine)
	}
	return found, searched, size, hole, nil
}

// seekData is SEEK_DATA of Linux, the only system where logs are rotated.
const seekData = 3

// dataAfterHole says whether a file begins with a hole, and where it then holds something, as far
// as its file system knows.
func dataAfterHole(file *os.File) (at int64, hole bool) {
	var b [1]byte
	if n, _ := file.ReadAt(b[:], 0); n == 0 || b[0] != 0 || runtime.GOOS != "linux" {
		return 0, false
	}
	at, err := file.Seek(0, seekData)
	if errors.Is(err, syscall.ENXIO) { // it is nothing else
		at, err = file.Seek(0, io.SeekEnd)
	}
	if err != nil {
		at = 0
	}
	return at, true
}
