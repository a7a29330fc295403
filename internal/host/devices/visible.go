package devices

import (
	"slices"
	"strconv"
	"strings"
)

// Visible chooses from all what a list in the grammar of CUDA_VISIBLE_DEVICES
// leaves, in the list's order.
//
// A list that begins with GPU- holds UUIDs or unambiguous beginnings of them;
// any other holds numbers, of which only the leading digits count. The first
// entry that means no device ends the list. An entry that occurs twice makes it
// empty, and so does an empty list.
//
// Source: _parse_visible_devices, _transform_uuid_to_ordinals and
// _device_count_nvml in torch/cuda/__init__.py.
func Visible(all []Device, list string) []Device {
	var indexes []int
	if strings.HasPrefix(list, "GPU-") {
		indexes = byUUID(all, list)
	} else {
		indexes = byNumber(len(all), list)
	}
	visible := make([]Device, len(indexes))
	for i, index := range indexes {
		visible[i] = all[index]
	}
	return visible
}

func byUUID(all []Device, list string) []int {
	var names []string
	for name := range strings.SplitSeq(list, ",") {
		if slices.Contains(names, name) {
			return nil
		}
		if !strings.HasPrefix(name, "GPU-") {
			break
		}
		names = append(names, name)
	}
	var indexes []int
	for _, name := range names {
		match := -1
		for i, d := range all {
			if strings.HasPrefix(d.UUID, name) {
				if match >= 0 {
					return indexes // ambiguous
				}
				match = i
			}
		}
		if match < 0 {
			break
		}
		if slices.Contains(indexes, match) {
			return nil
		}
		indexes = append(indexes, match)
	}
	return indexes
}

func byNumber(count int, list string) []int {
	var numbers []int
	for text := range strings.SplitSeq(list, ",") {
		n := leadingNumber(strings.TrimSpace(text))
		if n < 0 {
			break
		}
		if slices.Contains(numbers, n) {
			return nil
		}
		numbers = append(numbers, n)
	}
	for i, n := range numbers {
		if n >= count {
			return numbers[:i]
		}
	}
	return numbers
}

// leadingNumber reads the number that text begins with, as strtoul does; -1 if
// there is none or it is negative.
func leadingNumber(text string) int {
	text = strings.TrimPrefix(text, "+")
	digits := len(text) - len(strings.TrimLeft(text, "0123456789"))
	if digits == 0 {
		return -1
	}
	n, _ := strconv.Atoi(text[:digits]) // the largest int where it is larger: more than any machine has
	return n
}
