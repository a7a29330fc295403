package autopsy

import (
	"context"
	"time"
)

// For tests of what is not exported.
var (
	ParsePySpy        = parsePySpy
	ParseFaulthandler = parseFaulthandler
)

// Post is post, for a limited time.
func Post(ctx context.Context, limit time.Duration, socket string, uid int, handler string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return post(ctx, socket, uid, handler)
}
