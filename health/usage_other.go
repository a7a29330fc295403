//go:build !linux

package health

import "errors"

func usage([]int) (map[int]used, error) { return nil, errors.ErrUnsupported }
