//go:build !linux

package launch

import (
	"errors"
	"time"
)

func continueAfter(time.Duration) (func(), error) { return nil, errors.ErrUnsupported }
