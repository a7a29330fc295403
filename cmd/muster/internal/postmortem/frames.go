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
	p := &printer{w: w}
	feeds := map[string]*feed{}
	round := -1
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
			if round >= 0 && f.Round > round {
				note(text.Line(f.Attempt, 100))
			}
			round = max(round, f.Round)
		case "gone":
			note(fmt.Sprintf("nothing more from the host with group rank %d: %s", f.Rank, text.Line(f.Why, 400)))
		default:
			key := fmt.Sprint(f.Kind, f.Rank)
			to := feeds[key]
			if to == nil {
				to = &feed{round: f.Round, prefix: []byte(prefix(f.Rank, f.Kind == "err"))}
				feeds[key] = to
			}
			if len(feeds) > maxFeeds {
				return fmt.Errorf("the agent sends more than %d streams", maxFeeds)
			}
			if to.round != f.Round { // another attempt's
				if len(to.pending) > 0 {
					p.piece(to, false)
				}
				if to.round = f.Round; p.mid == to {
					p.end()
				}
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
