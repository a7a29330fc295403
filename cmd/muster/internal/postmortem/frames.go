package postmortem

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/logs"
)

// maxFeeds bounds the streams of a job.
const maxFeeds = 1 << 18

// PrintFrames writes the lines of a stream of logs that an agent sends, as Print does; live ones as
// they are written. note gets what else there is to say: another attempt, lines that are lost, a host
// that is gone. It returns whether there were any lines.
func PrintFrames(in *bufio.Reader, cfg Printing, live bool, note func(string)) (printed bool, err error) {
	p := newPrinter(cfg, live)
	left := map[string]int64{} // of streams, what was written and has not come
	names := map[int]string{}  // of attempts, by round
	var f health.LogFrame
	for {
		switch err := health.ReadLogFrame(in, &f); {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			n := int64(0)
			for _, size := range left {
				n += size
			}
			note(fmt.Sprintf("the connection to the agent broke off; %s of lines that were written before are missing, and "+
				"all that was written since", text.Size(n)))
			return printed, p.Close()
		case err != nil:
			return printed, errors.Join(err, p.Close())
		}
		switch f.Kind {
		case "end":
			return printed, p.Close()
		case "attempt":
			if names[f.Round] == "" && len(names) < maxFeeds {
				names[f.Round] = text.Line(f.Attempt, 100)
			}
			if p.begin(number{restart: f.Round}) && len(names) > 1 {
				note(names[f.Round])
			}
		case "gone":
			note(fmt.Sprintf("nothing more from the host with group rank %d: %s", f.Rank, text.Line(f.Why, 400)))
		default:
			left[fmt.Sprint(f.Kind, f.Rank)] = max(0, f.Size-f.Offset-int64(len(f.Data)))
			if len(left) > maxFeeds {
				return printed, errors.Join(fmt.Errorf("the agent sends more than %d streams", maxFeeds), p.Close())
			}
			printed = printed || len(f.Data) > 0
			c := logs.Chunk{Stderr: f.Kind == "err", Data: f.Data}
			if p.put(f.Rank, number{restart: f.Round}, names[f.Round], &c) != nil {
				return printed, p.Close() // which has the error, too
			}
		}
	}
}
