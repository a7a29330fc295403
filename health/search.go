package health

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
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
	s.askEach(ctx, s.otherRanks(ctx), http.MethodGet, "/v1/logs?"+q.Encode(), askTime, func(rank int, body []byte, err error) {
		answers[rank] = body
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
		found, searched, size, err := f.file(s.path, searchBytes/int64(len(streams)), time.Now().Add(share))
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
// State. It follows no symbolic link and reads regular files only.
func (f *find) file(path string, limit int64, until time.Time) (found []string, searched, size int64, err error) {
	file, info, err := safeopen.Open(path)
	if err != nil {
		return nil, 0, 0, err
	}
	defer file.Close()
	size = info.Size()
	from := max(0, size-limit)
	in := bufio.NewReaderSize(io.NewSectionReader(file, from, size-from), 64<<10)
	for n := 0; n%64 != 0 || time.Now().Before(until); n++ {
		line, err := in.ReadSlice('\n') // a longer line comes in pieces
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
			return nil, 0, 0, err
		}
	}
	found = found[max(0, len(found)-f.lines):]
	for i, line := range found {
		found[i] = text.Line(strings.Trim(line, "\r\n\x00"), maxLine)
	}
	return found, searched, size, nil
}
