package console

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/spec/span"
)

// Row returns a line of a table.
func Row(cells ...any) string {
	text := make([]string, len(cells))
	for i, c := range cells {
		text[i] = cli.Clean(fmt.Sprint(c))
		if text[i] == "" {
			text[i] = "-"
		}
	}
	return strings.Join(text, "\t")
}

// Brief formats a duration with its two most significant figures.
func Brief(d time.Duration) string {
	switch {
	case d < 0: // the times are of two clocks
		return "-" + Brief(-max(d, -math.MaxInt64))
	case d < time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return span.Text(d.Round(time.Second))
	case d < 48*time.Hour:
		return span.Text(d.Round(time.Minute))
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// WithoutEnd returns the error of a command that runs until it is interrupted. After an interrupt the
// interrupt is the error, not its consequences.
func WithoutEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// ParseTime returns the time that --since means: a duration before now, or a time.
func ParseTime(text string, now time.Time) (time.Time, error) {
	if d, err := span.Parse(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{
		time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04",
		"2006-01-02 15:04", "2006-01-02",
	} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	return now, cli.Usagef("--since: want a duration such as 10m or 1d, or a time such as "+
		"2006-01-02T15:04, got %q", text)
}

// Bytes formats a number of bytes with three digits.
func Bytes(n int64) string {
	v, unit := float64(n), 0
	for v >= 999.5 && unit < 4 {
		v, unit = v/1024, unit+1
	}
	digits := 0
	if unit > 0 && v < 9.95 {
		digits = 1
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + []string{"B", "K", "M", "G", "T"}[unit]
}

// ServiceNames returns the names of services, in one line.
func ServiceNames(all []pando.ServiceKey) string {
	var names []string
	for _, s := range all {
		names = append(names, s.String())
	}
	if names == nil {
		return "-"
	}
	return strings.Join(names, ", ")
}

// ShortDigest returns the beginning of a digest, which names an image on one host.
func ShortDigest(digest string) string {
	hex := strings.TrimPrefix(digest, "sha256:")
	return hex[:min(12, len(hex))]
}

// FrozenCode returns the exit code of a command that shows a cluster with a frozen host, or nil.
func FrozenCode(all []pando.HostStatus) error {
	for _, h := range all {
		if h.Frozen != "" {
			return cli.Code(cli.CodeOf(pando.ErrFrozen))
		}
	}
	return nil
}

// Bounds returns the allowed number of instances.
func Bounds(s pando.Scale) string {
	if s.Min == s.Max {
		return strconv.Itoa(s.Min)
	}
	return fmt.Sprintf("%d to %d", s.Min, s.Max)
}

// Subject returns the instance of a decision, or else its author.
func Subject(by pando.Asker, i pando.InstanceID) string {
	if i == "" {
		return by.String()
	}
	return string(i)
}
