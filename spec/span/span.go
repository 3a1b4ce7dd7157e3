// Package span reads and prints lengths of time as people write them: 500ms, 1m30s, 12h or 1d12h. A
// day has 24 hours.
//
// It never reads a clock or a calendar.
package span

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"pando.run/pando"
)

// Pattern is a regular expression of the lengths that Parse reads, without a sign.
const Pattern = `([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h|d))+`

// Want names the form of a length, for errors.
const Want = "a duration such as 500ms, 10s, 5m, 24h or 1d12h"

const day = 24 * time.Hour

var (
	whole = regexp.MustCompile(`^[+-]?` + Pattern + `$`)
	days  = regexp.MustCompile(`([0-9]+(?:\.[0-9]+)?)d`)
)

// Parse returns the length of a text. 0 needs no unit.
func Parse(text string) (time.Duration, error) {
	wrong := fmt.Errorf("%w: want %s, got %q", pando.ErrInvalid, Want, text)
	if text == "0" {
		return 0, nil
	}
	if !whole.MatchString(text) {
		return 0, wrong
	}
	var sum float64 // of the days, in hours
	for _, m := range days.FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return 0, wrong
		}
		sum += 24 * n
	}
	rest := days.ReplaceAllString(text, "")
	negative := strings.HasPrefix(rest, "-")
	rest = strings.TrimLeft(rest, "+-")
	var d time.Duration
	if rest != "" {
		var err error
		if d, err = time.ParseDuration(rest); err != nil {
			return 0, fmt.Errorf("%w: %q is too long a duration", pando.ErrInvalid, text)
		}
	}
	if sum*float64(time.Hour)+float64(d) >= math.MaxInt64 {
		return 0, fmt.Errorf("%w: %q is too long a duration", pando.ErrInvalid, text)
	}
	d += time.Duration(math.Round(sum * float64(time.Hour)))
	if negative {
		d = -d
	}
	return d, nil
}

// Text prints a length in the form that Parse reads, without units of zero: 1d12h, 90d, 2m or
// 1.5s.
func Text(d time.Duration) string {
	if d < 0 && d != math.MinInt64 {
		return "-" + Text(-d)
	}
	text := ""
	if d >= day {
		text, d = strconv.Itoa(int(d/day))+"d", d%day
		if d == 0 {
			return text
		}
	}
	text += d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	// time.Duration prints hours in front of each number of minutes, also after days.
	return strings.Replace(text, "d0h", "d", 1)
}

// Seconds prints a number of seconds as Text does.
func Seconds(s float64) string { return Text(time.Duration(math.Round(s * float64(time.Second)))) }

// Value is a length as the flag of a command.
type Value time.Duration

// String returns the length in the form that Set reads. The help of a command leaves a default of 0
// out.
func (v *Value) String() string {
	if *v == 0 {
		return "0"
	}
	return Text(time.Duration(*v))
}

// Set reads a length.
func (v *Value) Set(text string) error {
	d, err := Parse(text)
	*v = Value(d)
	return err
}

// Type names the value in the help of a command.
func (v *Value) Type() string { return "duration" }
