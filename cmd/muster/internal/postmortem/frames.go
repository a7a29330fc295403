package postmortem

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/text"
)

// maxFeeds bounds the streams of a job.
const maxFeeds = 1 << 18

// PrintFrames writes the lines of a stream of logs that an agent sends, as Print does. note
// gets what else there is to say: another attempt, lines that are lost, a host that is gone.
func PrintFrames(in *bufio.Reader, w io.Writer, prefix func(rank int, stderr bool) string, note func(string)) error {
	p := &printer{output: &output{w: w}}
	feeds := map[string]*feed{}
	names := map[int]string{} // of attempts, by round
	var f health.LogFrame
	for {
		switch err := health.ReadLogFrame(in, &f); {
		case err == io.EOF:
			note("the connection to the agent broke off")
			return finish(p, feeds)
		case err != nil:
			return errors.Join(err, finish(p, feeds))
		}
		switch f.Kind {
		case "end":
			return finish(p, feeds)
		case "attempt":
			if names[f.Round] == "" && len(names) < maxFeeds {
				names[f.Round] = text.Line(f.Attempt, 100)
			}
			p.begin(number{restart: f.Round}, func() {
				if len(names) > 1 {
					note(names[f.Round])
				}
			})
		case "gone":
			note(fmt.Sprintf("nothing more from the host with group rank %d: %s", f.Rank, text.Line(f.Why, 400)))
		default:
			key := fmt.Sprint(f.Kind, f.Rank)
			to := feeds[key]
			if to == nil {
				to = &feed{prefix: prefix(f.Rank, f.Kind == "err"), number: number{restart: f.Round}, attempt: names[f.Round]}
				feeds[key] = to
			}
			if len(feeds) > maxFeeds {
				return fmt.Errorf("the agent sends more than %d streams", maxFeeds)
			}
			if to.number.restart != f.Round { // another attempt's
				if len(to.pending) > 0 {
					p.piece(to, false)
				}
				if p.mid == to {
					p.end()
				}
				to.number.restart, to.attempt = f.Round, names[f.Round]
			}
			if f.Lost > 0 {
				note(fmt.Sprintf("%s of std%s of rank %d are missing: their segments are gone", text.Size(f.Lost), f.Kind, f.Rank))
			}
			if err := p.put(to, f.Data); err != nil {
				return err
			}
		}
	}
}

// finish ends all lines.
func finish(p *printer, feeds map[string]*feed) error {
	for _, f := range feeds {
		if len(f.pending) > 0 {
			p.piece(f, false)
		}
	}
	p.end()
	return p.flush()
}
