package api

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
)

// wholeMax bounds the whole numbers that every JSON program writes exactly.
const wholeMax = 1 << 53

// wholeNumbers writes the whole numbers of a JSON text without a fraction: 3.0 and 3e0 are integers
// by JSON Schema, and the decoder takes only 3 for one. It leaves invalid JSON as it is.
func wholeNumbers(data []byte) []byte {
	var out []byte
	done := 0 // bytes of data that out has
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '"':
			i = endOfString(data, i)
		case c == '-' || c >= '0' && c <= '9':
			end := i + 1
			for end < len(data) && bytes.IndexByte([]byte("0123456789+-.eE"), data[end]) >= 0 {
				end++
			}
			if whole, ok := wholeText(data[i:end]); ok {
				out = append(append(out, data[done:i]...), whole...)
				done = end
			}
			i = end - 1
		}
	}
	if done == 0 {
		return data
	}
	return append(out, data[done:]...)
}

// endOfString returns the place of the quote that ends a string.
func endOfString(data []byte, from int) int {
	for i := from + 1; i < len(data); i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return len(data)
}

// wholeText returns a number with a fraction or an exponent as an integer, if it is one.
func wholeText(number []byte) (string, bool) {
	if !bytes.ContainsAny(number, ".eE") || !json.Valid(number) {
		return "", false
	}
	f, err := strconv.ParseFloat(string(number), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > wholeMax {
		return "", false
	}
	return strconv.FormatFloat(f, 'f', -1, 64), true
}
