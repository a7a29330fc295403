// Command recording runs a command and draws what it prints, as it prints it, as an
// SVG that moves: each line appears when it came, with the seconds since the start
// beside it. Silences longer than a second and a half are shortened to that; the
// seconds stay the real ones. Where motion is not wanted, all lines are there at once.
//
//	go run ./internal/tools/recording -o FILE [-columns 110] COMMAND [ARGS...]
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"html"
	"io"
	"log"
	"os"
	"os/exec"
	"strings"
	"time"
)

const (
	columnWidth, lineHeight = 7.8, 19 // of a monospaced font of 13 px
	margin                  = 16
	quiet                   = 1500 * time.Millisecond // the longest silence shown
	rest                    = 6 * time.Second         // before it begins again
)

// A line is what was printed, and when.
type line struct {
	text string
	at   time.Duration // since the start
}

func main() {
	log.SetFlags(0)
	out := flag.String("o", "", "the file to write")
	columns := flag.Int("columns", 110, "the width of the terminal")
	flag.Parse()
	if *out == "" || flag.NArg() == 0 {
		log.Fatal("usage: recording -o FILE [-columns N] COMMAND [ARGS...]")
	}
	lines, err := record(flag.Args())
	if err != nil {
		log.Fatalf("recording: %v", err)
	}
	if err := os.WriteFile(*out, draw(lines, *columns), 0o644); err != nil {
		log.Fatal(err)
	}
}

// record runs the command and returns its lines, the command first.
func record(args []string) ([]line, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = w, w
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	w.Close()
	lines := []line{{"$ " + strings.Join(args, " "), 0}}
	for s := bufio.NewScanner(io.TeeReader(r, os.Stderr)); s.Scan(); {
		lines = append(lines, line{s.Text(), time.Since(begin)})
	}
	return lines, cmd.Wait()
}

// draw makes the picture.
func draw(lines []line, columns int) []byte {
	var shown time.Duration // since the picture began
	var rows, styles bytes.Buffer
	var starts []time.Duration
	y, before := 0, time.Duration(0)
	for _, l := range lines {
		shown, before = shown+min(l.at-before, quiet), l.at
		starts = append(starts, shown)
		fmt.Fprintf(&rows, `<g class="l l%d">`, len(starts))
		for i, part := range wrap(l.text, columns) {
			y += lineHeight
			if i == 0 && l.at > 0 {
				fmt.Fprintf(&rows, `<text class="s" x="0" y="%d">%5.1f s</text>`, y, l.at.Seconds())
			}
			fmt.Fprintf(&rows, `<text class="%s" x="%g" y="%d">%s</text>`, class(l.text), 9*columnWidth, y, html.EscapeString(part))
		}
		rows.WriteString("</g>\n")
	}
	total := shown + rest
	for i, at := range starts {
		percent := 100 * at.Seconds() / total.Seconds()
		fmt.Fprintf(&styles, ".l%d{animation-name:k%[1]d}@keyframes k%[1]d{0%%,%.2[2]f%%{opacity:0}%.2[3]f%%,100%%{opacity:1}}\n", i+1, percent, percent+0.01)
	}
	width, height := int(float64(columns+9)*columnWidth)+2*margin, y+2*margin
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img">
<title>%s</title>
<style>
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre;fill:#d4d7dd}
.c{fill:#fff;font-weight:bold}.e{fill:#ff8f8f}.w{fill:#f2cf75}.s{fill:#747b88}
@media (prefers-reduced-motion:no-preference){
.l{animation-duration:%.1fs;animation-iteration-count:infinite;animation-timing-function:step-end}
%s}
</style>
<rect width="100%%" height="100%%" rx="8" fill="#191c22"/>
<g transform="translate(%d %d)">
%s</g>
</svg>
`, width, height, html.EscapeString(lines[0].text), total.Seconds(), styles.String(), margin, margin-4, rows.String())
	return b.Bytes()
}

// class is how a line looks: the command, an error, a warning, or anything else.
func class(text string) string {
	if strings.HasPrefix(text, "$ ") {
		return "c"
	}
	if len(text) > 1 && text[1] >= '0' && text[1] <= '9' { // as in W1122
		switch text[0] {
		case 'E':
			return "e"
		case 'W':
			return "w"
		}
	}
	return "o"
}

// wrap breaks a line as a terminal does, but at a blank where there is one.
func wrap(text string, columns int) []string {
	var parts []string
	for len(text) > columns {
		at := strings.LastIndexByte(text[:columns], ' ') + 1
		if at <= columns/2 {
			at = columns
		}
		parts, text = append(parts, text[:at]), text[at:]
	}
	return append(parts, text)
}
