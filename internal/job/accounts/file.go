package accounts

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/wait/sleep"
)

// FileName is the name of the file in a run's log directory. Its first line is a head, the others
// are marks.
const FileName = "time.jsonl"

// A head is the first line.
type head struct {
	Version int `json:"version"`
	Workers int `json:"workers"` // of this host
}

const (
	version    = 1
	maxFile    = 16 << 20 // bytes that are read
	maxWorkers = 4096
)

// A Log keeps marks while a job runs, and writes them to a file. Its methods may be called concurrently.
type Log struct {
	mu     sync.Mutex // guards the rest
	record Record
	to     *os.File // nil without
	log    *slog.Logger
}

// Create returns the log of a host with so many workers, which makes the file in dir; "" means none.
// Without a file, or space in it, the log continues, and logger says so.
func Create(dir string, workers int, logger *slog.Logger) *Log {
	l := &Log{record: Record{Workers: workers}, log: logger}
	if dir != "" {
		to, err := os.OpenFile(filepath.Join(dir, FileName), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o666)
		l.to = to
		l.write(head{version, workers}, err)
	}
	return l
}

// write writes a line, unless there was an error before. With an error there is no file any more.
func (l *Log) write(v any, err error) {
	if err == nil && l.to == nil {
		return
	}
	line, jsonErr := json.Marshal(v)
	if err = errors.Join(err, jsonErr); err == nil {
		_, err = l.to.Write(append(line, '\n'))
	}
	if err != nil {
		l.log.Warn("muster report --time cannot tell from the log directory where the time of this run goes", "error", err)
		l.to.Close()
		l.to = nil
	}
}

// Close closes the file, and removes it unless it is kept.
func (l *Log) Close(keep bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to != nil && !keep {
		_ = os.Remove(l.to.Name())
	}
	l.to.Close()
	l.to = nil
}

// Put adds a mark.
func (l *Log) Put(m Mark) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.record.Marks = append(l.record.Marks, m)
	l.write(m, nil)
}

// Live repeats the last mark each minute until ctx is done: an agent that is killed cannot write when it ended.
func (l *Log) Live(ctx context.Context) {
	for sleep.For(ctx, time.Minute) == nil {
		l.mu.Lock()
		if n := len(l.record.Marks); n > 0 {
			m := &l.record.Marks[n-1]
			l.write(Mark{At: time.Now().UnixMilli(), Account: m.Account, LocalRank: m.LocalRank}, nil)
		}
		l.mu.Unlock()
	}
}

// Now is the account of the last mark.
func (l *Log) Now() Account {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.record.Marks); n > 0 {
		return l.record.Marks[n-1].Account
	}
	return Agent
}

// Sum is where the time of all workers has gone from the first mark to a moment.
func (l *Log) Sum(now int64) Spent {
	l.mu.Lock()
	record := Record{l.record.Workers, slices.Clone(l.record.Marks)}
	l.mu.Unlock()
	all := Spent{}
	if len(record.Marks) > 0 {
		workers, _ := record.Sum(record.Marks[0].At, now)
		for _, spent := range workers {
			all.add(spent)
		}
	}
	return all
}

// Read reads the file in a run's directory. The error is fs.ErrNotExist if there is none. Of a file
// that is cut off, or too long, what came before counts.
func Read(dir string) (*Record, error) {
	file, _, err := safeopen.Open(filepath.Join(dir, FileName))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	in := json.NewDecoder(bufio.NewReader(io.LimitReader(file, maxFile)))
	var h head
	if err := in.Decode(&h); err != nil {
		return nil, fmt.Errorf("the first line is none that an agent writes: %w", err)
	}
	if h.Version != version || h.Workers < 1 || h.Workers > maxWorkers {
		return nil, fmt.Errorf("version %d with %d workers; want version %d and 1 to %d workers", h.Version, h.Workers,
			version, maxWorkers)
	}
	r := &Record{Workers: h.Workers}
	for {
		var m Mark
		err := in.Decode(&m)
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return r, nil
		case err != nil:
			return nil, fmt.Errorf("line %d: %w", len(r.Marks)+2, err)
		case !slices.Contains(All[:], m.Account):
			return nil, fmt.Errorf("line %d: no account %.40q", len(r.Marks)+2, m.Account)
		}
		r.Marks = append(r.Marks, m)
	}
}
