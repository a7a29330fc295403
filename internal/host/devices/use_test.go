package devices

import (
	"context"
	"errors"
	"io/fs"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReadUses(t *testing.T) {
	const mib = 1 << 20
	of := func(n int) *int { return &n }
	busy := Use{Index: 0, Percent: of(97), UsedBytes: 61443 * mib, TotalBytes: 81559 * mib}
	idle := Use{Index: 1, Percent: of(0), UsedBytes: 1 * mib, TotalBytes: 81559 * mib}
	sliced := Use{Index: 2, UsedBytes: 87 * mib, TotalBytes: 81559 * mib}
	const cards = `cat <<'END'
0, GPU-8f6d2c1a-43f7-2b11-9c39-0d7fd8e2f0a1, 97, 61443, 81559
1, GPU-0b7f3e55-90ab-6c3d-1f4e-5a6b7c8d9e0f, 0, 1, 81559
2, GPU-c3d4e5f6-1122-3344-5566-778899aabbcc, [N/A], 87, 81559
END`
	for _, tt := range []struct {
		name, script, visible string
		want                  []Use
		ok                    bool
	}{
		{"all", cards, "all", []Use{busy, idle, sliced}, true},
		{"some, in another order", cards, "1,0", []Use{idle, busy}, true},
		{"by UUID", cards, "GPU-0b7f", []Use{idle}, true},
		{"none", cards, "", []Use{}, true},
		{"a slice", cards, "MIG-1c0ffee0-0000-0000-0000-000000000000", []Use{}, true},
		{"other fields", `echo "0, GPU-8f6d2c1a, 97"; echo "No devices were found"`, "all", []Use{}, true},
		{"no driver", `echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."; exit 9`, "all", nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nvidiaSMI(t, "PATH=/usr/bin:/bin\n"+tt.script)
			got, err := readUses(t.Context(), func(string) (string, bool) { return tt.visible, tt.visible != "all" })
			if diff := cmp.Diff(tt.want, got); diff != "" || (err == nil) != tt.ok {
				t.Errorf("error %v; -want +got:\n%s", err, diff)
			}
		})
	}
}

// A Meter asks only when somebody asks it, one question at a time, and lets nobody wait twice.
func TestMeter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, takes := &Meter{}, 300*time.Millisecond
		var asked atomic.Int32
		read := func(wait time.Duration) (n int, took time.Duration) {
			began, takes := time.Now(), takes
			uses := m.read(wait, func(ctx context.Context) ([]Use, error) {
				n := asked.Add(1)
				select {
				case <-time.After(takes):
					return make([]Use, n), nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			})
			return len(uses), time.Since(began)
		}
		check := func(what string, wait time.Duration, wantUses int, wantTook time.Duration, wantAsked int32) {
			t.Helper()
			n, took := read(wait)
			synctest.Wait()
			if n != wantUses || took != wantTook || asked.Load() != wantAsked {
				t.Errorf("%s: answer %d after %v, asked %d times; want %d, %v, %d", what, n, took, asked.Load(), wantUses, wantTook, wantAsked)
			}
		}
		check("the first", time.Second, 1, takes, 1)
		check("at once again", time.Second, 1, 0, 1)
		time.Sleep(useEvery)
		check("a later one gets the answer before", time.Second, 1, 0, 2)
		time.Sleep(useEvery + takes)
		takes = time.Hour // it hangs
		check("the answer before", time.Second, 2, 0, 3)
		for range 100 { // it is killed, and started again, but one at a time
			time.Sleep(time.Second)
			read(time.Second)
		}
		if most := 4 + 100/int32((useEvery+useTimeout)/time.Second); asked.Load() > most {
			t.Errorf("asked %d times, want at most %d", asked.Load(), most)
		}
		time.Sleep(useKept)
		n := asked.Load()
		time.Sleep(time.Hour)
		if asked.Load() != n {
			t.Errorf("asked %d times while nobody looked", asked.Load()-n)
		}
		check("an answer of long ago", time.Second, 0, 0, n+1)
		time.Sleep(useTimeout) // nothing may be left in the bubble
	})
}

func TestMeterWithoutSMI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, asked := &Meter{}, 0
		for range 10 {
			uses := m.read(time.Second, func(context.Context) ([]Use, error) {
				asked++
				return nil, errors.Join(errors.New("not found"), fs.ErrNotExist)
			})
			if uses != nil {
				t.Fatal(uses)
			}
			time.Sleep(useEvery)
		}
		if asked != 1 {
			t.Errorf("looked for nvidia-smi %d times, want once", asked)
		}
	})
}
