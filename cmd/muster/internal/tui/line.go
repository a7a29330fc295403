package tui

import "strings"

// A Style is how a piece of a line looks.
type Style uint8

// The styles. Where there are no colours, Red and Yellow are bold and the other
// colours plain.
const (
	Plain Style = iota
	Bold
	Dim
	Reverse
	Red
	Yellow
	Green
	Cyan
)

// codes are the parameters of each style's escape sequence, with and without
// colours.
// Source: ECMA-48, 8.3.117 SGR.
var codes = [...][2]string{
	Plain: {"", ""}, Bold: {"1", "1"}, Dim: {"2", ""}, Reverse: {"7", "7"},
	Red: {"1;31", "1"}, Yellow: {"33", "1"}, Green: {"32", ""}, Cyan: {"36", ""},
}

// A Span is a piece of a line in one style. Its text holds no control characters;
// package text's Line drops them.
type Span struct {
	Text  string
	Style Style
}

// A Line is one line of a screen.
type Line []Span

// String returns the text.
func (l Line) String() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.Text)
	}
	return b.String()
}

// Fit cuts a line to a width; what was longer ends in an ellipsis.
func (l Line) Fit(width int) Line {
	out := make(Line, 0, len(l))
	for i, s := range l {
		w := Width(s.Text)
		if w > width || w == width && more(l[i+1:]) {
			if text := Cut(s.Text+"…", width); text != "" {
				out = append(out, Span{text, s.Style})
			}
			return out
		}
		width -= w
		out = append(out, s)
	}
	return out
}

// more says whether there is text in spans.
func more(spans []Span) bool {
	for _, s := range spans {
		if s.Text != "" {
			return true
		}
	}
	return false
}

// render returns what a terminal is sent for a line.
func (l Line) render(b *strings.Builder, colour bool) {
	column := 0
	if !colour {
		column = 1
	}
	for _, s := range l {
		code := codes[min(int(s.Style), len(codes)-1)][column]
		if code == "" {
			b.WriteString(s.Text)
			continue
		}
		b.WriteString("\x1b[" + code + "m" + s.Text + "\x1b[0m")
	}
}
