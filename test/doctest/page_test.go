package doctest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

const sample = "# A page\n\nStart, `muster run`, and then `muster top\n9000` or `muster report DIR`:\n\n" +
	"    make build     # once\n    bin/muster run --nnodes 2 \\\n        train.py\n\n    rank 0\n    muster: stopped\n\n" +
	"    muster report logs\n\nWhich prints:\n\n    all is well\n\nand\n\n" +
	"```python\nmuster.heartbeat()\n```\n\n    not its output\n\n    make docs\n\n## Next\n\n    not its output\n\n" +
	"```sh\ncat >f <<END\nEND\nmuster version\n```\n\n```output\n1.2\n```\n\n" +
	"| | `--rdzv-backend etcd --rdzv-endpoint e:1` |\n|-|-|\n| `--rdzv-backend static --node-rank N` | `muster run --x …` `muster policy check` `muster store --allow` `muster logs will not know` `muster stop: asked, it stops` `muster (adopted): starts this job` `muster help run` |\n"

func TestPage(t *testing.T) {
	p := parse("page.md", []byte(sample))
	want := []Command{
		{Line: "make build     # once", At: 6},
		{Line: "bin/muster run --nnodes 2 \\\n    train.py", Output: "rank 0\nmuster: stopped", At: 7},
		{Line: "muster report logs", Output: "all is well", At: 13},
		{Line: "make docs", At: 27},
		{Line: "muster version", Output: "1.2", At: 36},
		{Line: "muster top 9000"},
		{Line: "--rdzv-backend etcd --rdzv-endpoint e:1"},
		{Line: "muster help run"},
	}
	if diff := cmp.Diff(want, p.Commands()); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
	scripts := []Script{{Text: "cat >f <<END\nEND\nmuster version\n", Output: "1.2\n", Compared: true, At: 34}}
	if diff := cmp.Diff(scripts, p.Scripts()); diff != "" {
		t.Errorf("scripts (-want +got):\n%s", diff)
	}
}
