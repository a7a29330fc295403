package pyjson

// Elements counts the elements of lists in JSON without decoding it: outer ones are in lists of the
// whole, as workers are, inner ones in lists within these. An empty list counts as one of an element.
func Elements(body []byte) (outer, inner int) {
	var open []byte // the brackets that are not closed yet
	count := func() {
		if len(open) > 2 {
			inner++
		} else {
			outer++
		}
	}
	for i := 0; i < len(body); i++ {
		switch c := body[i]; c {
		case '"':
			for i++; i < len(body) && body[i] != '"'; i++ {
				if body[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			if open = append(open, c); c == '[' {
				count()
			}
		case '}', ']':
			open = open[:max(0, len(open)-1)]
		case ',':
			if len(open) > 0 && open[len(open)-1] == '[' {
				count()
			}
		}
	}
	return outer, inner
}
