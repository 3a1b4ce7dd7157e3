package pando

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ReadUlimit returns the bounds that a value names: SOFT:HARD, or one number for both. -1 is the
// largest.
func ReadUlimit(text string) (soft, hard uint64, err error) {
	one, two, both := strings.Cut(text, ":")
	if !both {
		two = one
	}
	soft, err = readLimit(one)
	if err == nil {
		hard, err = readLimit(two)
	}
	if err == nil && soft > hard {
		err = fmt.Errorf("%w: %q: the first number is larger than the second", ErrInvalid, text)
	}
	return soft, hard, err
}

func readLimit(text string) (uint64, error) {
	if text == "-1" {
		return math.MaxUint64, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%w: %q: want SOFT:HARD or one number, such as 1024:4096", ErrInvalid,
			text)
	}
	return n, nil
}
