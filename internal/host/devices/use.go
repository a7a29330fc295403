package devices

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	useEvery   = 5 * time.Second  // nvidia-smi is asked no more often
	useTimeout = 10 * time.Second // that it has to answer
	useKept    = 2 * time.Minute  // how old an answer may be
)

// A Use is how busy one GPU is.
type Use struct {
	Index int `json:"index"` // as nvidia-smi counts them
	// Percent of the last moments in which it computed; nil where the driver does not say.
	Percent    *int  `json:"percent,omitempty"`
	UsedBytes  int64 `json:"memory_used_bytes"`
	TotalBytes int64 `json:"memory_bytes"`
}

// A Meter tells how busy the GPUs are that a job may use. It runs nvidia-smi only because
// somebody asks, and never again where there is none. Its zero value is ready; Read may be
// called concurrently.
type Meter struct {
	mu     sync.Mutex    // guards the rest
	none   bool          // there is no nvidia-smi
	waited bool          // somebody has waited for the first answer
	tried  time.Time     // when nvidia-smi was last started, or ended
	at     time.Time     // when it last answered
	uses   []Use         // the answer; nobody changes it
	done   chan struct{} // of the question under way; nil if none is
}

// Read returns the visible GPUs in the order of CUDA's numbers, as they were at most a few seconds
// before somebody asked last. Only the first call waits for nvidia-smi, at most for a time. Nil means
// that nothing is known. The caller does not change it.
func (m *Meter) Read(wait time.Duration) []Use {
	return m.read(wait, func(ctx context.Context) ([]Use, error) { return readUses(ctx, os.LookupEnv) })
}

func (m *Meter) read(wait time.Duration, ask func(context.Context) ([]Use, error)) []Use {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.none && m.done == nil && (m.tried.IsZero() || time.Since(m.tried) >= useEvery) {
		m.tried, m.done = time.Now(), make(chan struct{})
		// It ends later than useTimeout only if the driver holds nvidia-smi in the kernel. There is
		// no second one until then.
		go m.ask(ask)
	}
	if done := m.done; done != nil && !m.waited && wait > 0 {
		m.waited = true
		m.mu.Unlock()
		select {
		case <-done:
		case <-time.After(wait):
		}
		m.mu.Lock()
	}
	if time.Since(m.at) > useKept {
		return nil
	}
	return m.uses
}

// ask keeps an answer.
func (m *Meter) ask(ask func(context.Context) ([]Use, error)) {
	ctx, cancel := context.WithTimeout(context.Background(), useTimeout)
	defer cancel()
	uses, err := ask(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tried, m.none = time.Now(), errors.Is(err, fs.ErrNotExist)
	if err == nil {
		m.uses, m.at = uses, m.tried
	}
	close(m.done)
	m.done = nil
}

// useFields are what readUses asks nvidia-smi.
var useFields = []string{"index", "uuid", "utilization.gpu", "memory.used", "memory.total"}

// readUses asks nvidia-smi for the GPUs that CUDA_VISIBLE_DEVICES leaves. Which card a slice (MIG)
// belongs to is not known, so there is none for slices.
func readUses(ctx context.Context, lookup func(string) (string, bool)) ([]Use, error) {
	out, err := runSMI(ctx, "--query-gpu="+strings.Join(useFields, ","), "--format=csv,noheader,nounits")
	if err != nil {
		return nil, err
	}
	var all []Device
	uses := map[string]Use{}
	for _, g := range ParseSMI(out, useFields) {
		const mib = 1 << 20
		u := Use{Index: g.Number("index"), UsedBytes: int64(g.Number("memory.used")) * mib,
			TotalBytes: int64(g.Number("memory.total")) * mib}
		if n, err := strconv.Atoi(g["utilization.gpu"]); err == nil {
			u.Percent = &n
		}
		uses[g["uuid"]] = u
		all = append(all, Device{Kind: NVIDIA, UUID: g["uuid"]})
	}
	if list, ok := lookup("CUDA_VISIBLE_DEVICES"); ok {
		all = Visible(all, list)
	}
	visible := make([]Use, 0, len(all))
	for _, d := range all {
		visible = append(visible, uses[d.UUID])
	}
	return visible, nil
}
