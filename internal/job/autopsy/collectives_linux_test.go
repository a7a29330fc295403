package autopsy_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"testing"

	"github.com/muster-run/muster/internal/job/autopsy"
	"github.com/muster-run/muster/internal/job/flight"
)

// A worker of a busy machine may not answer in time: it is not blamed if it waits in a collective, but if
// it does something else, or is stopped there.
func TestSilentWorkers(t *testing.T) {
	f, err := os.Open("../flight/testdata/gloo_missing.tar.gz")
	must(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	must(t, err)
	var dumps [][]byte // of ranks 0 to 3; rank 3 has not come
	for files := tar.NewReader(z); ; {
		if _, err := files.Next(); err == io.EOF {
			break
		}
		data, err := io.ReadAll(files)
		must(t, err)
		d, err := new(flight.Reader).Read(data)
		must(t, err)
		var b bytes.Buffer
		packed := gzip.NewWriter(&b)
		_, err = packed.Write(d.Encode())
		must(t, err)
		must(t, packed.Close())
		dumps = append(dumps, b.Bytes())
	}
	const deaf = "does not answer"
	elsewhere := python(mainThread("/srv/train.py:12 load", "/srv/train.py:90 <module>"))
	stopped := reduce(7)
	stopped.State = "stopped"
	for _, tt := range []struct {
		name   string
		silent autopsy.Worker
		want   int
	}{
		{"waits as the others do", reduce(7), 3},
		{"does something else", elsewhere, 0},
		{"is stopped", stopped, 0},
	} {
		r := &autopsy.Report{Workers: []autopsy.Worker{tt.silent, reduce(7), reduce(7), elsewhere}}
		for rank := range r.Workers {
			w := &r.Workers[rank]
			if w.Rank = rank; rank == 0 {
				w.Silent = deaf
			} else {
				w.Dumps = [][]byte{dumps[rank]}
			}
		}
		r.JudgeOf(4)
		if v := r.Collectives; v == nil || len(v.Ranks) != 1 || v.Ranks[0] != tt.want {
			t.Errorf("%s: %+v, want rank %d", tt.name, v, tt.want)
		}
	}
}
