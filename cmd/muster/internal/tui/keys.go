package tui

import "unicode/utf8"

// A Key is a character that was typed, or one of the constants.
type Key rune

// Keys that are no characters.
const (
	KeyUp Key = -1 - iota
	KeyDown
	KeyPageUp
	KeyPageDown
	KeyHome
	KeyEnd
	KeyEscape
	KeyInterrupt // Ctrl-C
	KeySuspend   // Ctrl-Z
	KeyRedraw    // Ctrl-L
)

// Decode returns the keys in what a terminal has sent. Sequences that it does not
// know are left out. rest is the beginning of a sequence or character whose end has
// not come; it is shorter than 32 bytes. An ESC at the end is the key, since
// terminals send a sequence at once.
func Decode(b []byte) (keys []Key, rest []byte) {
	for len(b) > 0 {
		switch c := b[0]; {
		case c == 0x1b:
			key, n := sequence(b)
			if n == 0 {
				if len(b) >= 32 {
					b = b[1:]
					continue
				}
				return keys, b
			}
			if key != 0 {
				keys = append(keys, key)
			}
			b = b[n:]
		case c == 3:
			keys, b = append(keys, KeyInterrupt), b[1:]
		case c == 26:
			keys, b = append(keys, KeySuspend), b[1:]
		case c == 12:
			keys, b = append(keys, KeyRedraw), b[1:]
		case !utf8.FullRune(b):
			return keys, b
		default:
			r, n := utf8.DecodeRune(b)
			if r != utf8.RuneError {
				keys = append(keys, Key(r))
			}
			b = b[n:]
		}
	}
	return keys, nil
}

// sequence reads the escape sequence that b begins with; n is 0 if it is not
// complete, key 0 if it is not known.
// Source: ctlseqs of xterm, "PC-Style Function Keys".
func sequence(b []byte) (key Key, n int) {
	if len(b) == 1 {
		return KeyEscape, 1
	}
	if b[1] != '[' && b[1] != 'O' {
		return KeyEscape, 1 // then comes another key
	}
	for n = 2; n < len(b); n++ {
		if c := b[n]; c >= 0x40 && c <= 0x7e {
			return sequenceKey(b[2:n], c), n + 1
		} else if c < 0x20 || c > 0x7e {
			return 0, n
		}
	}
	return 0, 0
}

// sequenceKey is the key of a sequence with parameters.
func sequenceKey(parameters []byte, final byte) Key {
	switch final {
	case 'A':
		return KeyUp
	case 'B':
		return KeyDown
	case 'H':
		return KeyHome
	case 'F':
		return KeyEnd
	case '~':
		switch string(parameters) {
		case "1", "7":
			return KeyHome
		case "4", "8":
			return KeyEnd
		case "5":
			return KeyPageUp
		case "6":
			return KeyPageDown
		}
	}
	return 0
}
