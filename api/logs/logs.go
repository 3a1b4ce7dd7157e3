// Package logs merges the lines of several logs, prints them, and carries them between hosts.
//
// It opens no file and never keeps a line that was read.
package logs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"pando.run/pando"
)

// LineBytesMax is the largest line. A longer one is cut into several.
const LineBytesMax = 64 << 10

// timeLayout is the time before a line: in UTC, to the millisecond.
const timeLayout = "2006-01-02T15:04:05.000Z"

// Slice returns lines that are known already.
func Slice(all []pando.LogLine) pando.LogLines { return &slice{all} }

type slice struct{ all []pando.LogLine }

func (s *slice) Next() (l pando.LogLine, err error) {
	if len(s.all) == 0 {
		return l, io.EOF
	}
	l, s.all = s.all[0], s.all[1:]
	return l, nil
}

// Unread returns the memory of the lines that are left.
func (s *slice) Unread() (bytes int64) {
	for _, l := range s.all {
		bytes += l.Weight()
	}
	return bytes
}

func (s *slice) Close() error { return nil }

// Merge returns the lines of several sources in the order of their times. Each source is in that
// order, and it ends. The error of a source ends the whole.
func Merge(sources ...pando.LogLines) pando.LogLines {
	return &merged{sources: sources, heads: make([]*pando.LogLine, len(sources))}
}

type merged struct {
	sources []pando.LogLines
	heads   []*pando.LogLine // the next line of each source; nil: not read yet
}

func (m *merged) Next() (pando.LogLine, error) {
	first := -1
	for n := 0; n < len(m.sources); {
		if m.heads[n] == nil {
			l, err := m.sources[n].Next()
			if errors.Is(err, io.EOF) {
				m.sources[n].Close()
				m.sources = slices.Delete(m.sources, n, n+1)
				m.heads = slices.Delete(m.heads, n, n+1)
				continue
			}
			if err != nil {
				return l, err
			}
			m.heads[n] = &l
		}
		if first < 0 || m.heads[n].At.Before(m.heads[first].At) {
			first = n
		}
		n++
	}
	if first < 0 {
		return pando.LogLine{}, io.EOF
	}
	l := *m.heads[first]
	m.heads[first] = nil
	return l, nil
}

func (m *merged) Close() error {
	var errs []error
	for _, s := range m.sources {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// Encode appends a line as hosts send it: nanoseconds since 1970, instance and text.
func Encode(b []byte, l pando.LogLine) []byte {
	b = strconv.AppendInt(b, l.At.UnixNano(), 10)
	b = append(append(append(b, '\t'), l.Instance...), '\t')
	return append(append(b, l.Text...), '\n')
}

// Decode returns the lines that another host sends.
func Decode(from io.ReadCloser) pando.LogLines {
	return &decoded{from, bufio.NewReaderSize(from, LineBytesMax+1024)}
}

type decoded struct {
	io.Closer
	r *bufio.Reader
}

func (d *decoded) Next() (l pando.LogLine, err error) {
	b, err := d.r.ReadSlice('\n')
	switch {
	case errors.Is(err, io.EOF) && len(b) == 0:
		return l, io.EOF
	case errors.Is(err, bufio.ErrBufferFull):
		return l, fmt.Errorf("a line of a log: %w", pando.ErrTooLarge)
	case err != nil:
		return l, fmt.Errorf("the log broke off: %w", err)
	}
	at, rest, _ := bytes.Cut(b[:len(b)-1], []byte("\t"))
	instance, text, ok := bytes.Cut(rest, []byte("\t"))
	nanos, err := strconv.ParseInt(string(at), 10, 64)
	if err != nil || !ok {
		return l, fmt.Errorf("%w: %.40q is no line of a log", pando.ErrInvalid, b)
	}
	return pando.LogLine{
		At: time.Unix(0, nanos), Instance: pando.InstanceID(instance), Text: string(text),
	}, nil
}

// Printed returns lines as text for people: with the instance and with the time, or without.
func Printed(lines pando.LogLines, names, times bool) io.ReadCloser {
	return &printed{lines: lines, names: names, times: times}
}

type printed struct {
	lines        pando.LogLines
	names, times bool
	rest         []byte
}

func (p *printed) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		l, err := p.lines.Next()
		if err != nil {
			return 0, err
		}
		var text strings.Builder
		if p.names {
			text.WriteString(string(l.Instance) + "  ")
		}
		if p.times {
			text.WriteString(l.At.UTC().Format(timeLayout) + "  ")
		}
		text.WriteString(l.Text + "\n")
		p.rest = []byte(text.String())
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

func (p *printed) Close() error { return p.lines.Close() }
