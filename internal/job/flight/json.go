package flight

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
)

// json reads JSON. What it has of texts is data from then on.
func (d *document) json() error {
	in := json.NewDecoder(bytes.NewReader(d.data))
	in.UseNumber()
	d.data = nil
	for d.made <= maxValues {
		token, err := in.Token()
		d.pos = int(in.InputOffset())
		if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
			return errCut
		} else if err != nil {
			return err
		}
		switch t := token.(type) {
		case json.Delim:
			switch n := len(d.marks) - 1; t {
			case '[', '{':
				d.marks, d.made = append(d.marks, len(d.stack)), d.made+1
				continue
			case ']':
				d.list(kindList, d.marks[n])
			case '}':
				d.list(kindDict, d.marks[n])
			}
			d.marks = d.marks[:len(d.marks)-1]
		case string:
			d.push(value{kind: kindText, a: int32(len(d.data)), b: int32(len(d.data) + len(t))})
			d.data = append(d.data, t...)
		case json.Number: // read up to its point
			whole, _, _ := strings.Cut(string(t), ".")
			n, _ := strconv.ParseInt(whole, 10, 64)
			d.push(value{n: n})
		case bool:
			n := int64(0)
			if t {
				n = 1
			}
			d.push(value{n: n})
		case nil:
			d.push(value{})
		}
		if len(d.marks) == 0 {
			if _, err := in.Token(); err != io.EOF {
				return errors.New("there is more after the end")
			}
			return nil
		}
	}
	return errMany
}
