package tcpstore

import (
	"bytes"
	"errors"
	"fmt"
)

// opening is what every client of PyTorch 2 sends first.
var opening = []byte{byte(qValidate), 0xce, 0xf7, 0x85, 0x3c}

var (
	errOld  = errors.New("a client of PyTorch 1.x, which speaks another protocol; the worker needs PyTorch 2.0 or later")
	errHTTP = errors.New("an HTTP request, not a TCPStore client")
	errMute = fmt.Errorf("no request came in %v", openingTimeout)
	errTLS  = errors.New("a TLS client; TCPStore is not encrypted")
	errHas  = errors.New("an agent with a token, and this store has none: give all agents the same one")
)

// checkOpening checks the first bytes of a connection, as far as they are there.
func checkOpening(b []byte) error {
	b = b[:min(len(b), maxQuoted)]
	head := b[:min(len(b), len(opening))]
	if bytes.Equal(head, opening[:len(head)]) {
		return nil
	}
	switch {
	case looksOld(b):
		return errOld
	case bytes.HasPrefix(b, []byte{0x16, 3}):
		return errTLS
	case bytes.HasPrefix(b, []byte("\xaamuster")):
		return errHas
	}
	for _, method := range []string{"GET ", "HEAD ", "POST ", "PUT ", "OPTIONS ", "CONNECT ", "PRI ", "DELETE "} {
		if bytes.HasPrefix(b, []byte(method)) {
			return errHTTP
		}
	}
	return fmt.Errorf("no VALIDATE of a PyTorch 2 client at the start but %x", b)
}

// looksOld reports whether a connection starts as one of PyTorch 1.x does: with
// a query number up to 8 and, for all but one query, a length or a count.
func looksOld(b []byte) bool {
	if b[0] > 8 {
		return false
	}
	for i, x := range b[1:min(len(b), 9)] {
		if i >= 2 && x != 0 {
			return false
		}
	}
	return true
}
