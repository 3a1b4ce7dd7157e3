package logs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
)

func line(second int64, i pando.InstanceID, text string) pando.LogLine {
	return pando.LogLine{At: time.Unix(second, 0), Instance: i, Text: text}
}

// all reads lines to their end.
func all(t interface{ Fatal(...any) }, l pando.LogLines) (out []pando.LogLine) {
	for {
		one, err := l.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, one)
	}
}

// A merge keeps every line, in the order of the times, and in the order of its source.
func TestAMergeIsInTheOrderOfTimes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sources []pando.LogLines
		var want []pando.LogLine
		for n := range rapid.IntRange(0, 4).Draw(t, "sources") {
			var own []pando.LogLine
			at := int64(0)
			for k := range rapid.IntRange(0, 6).Draw(t, "lines") {
				at += int64(rapid.IntRange(0, 3).Draw(t, "later"))
				own = append(own, line(at, pando.InstanceID(fmt.Sprint(n)), fmt.Sprint(k)))
			}
			want = append(want, own...)
			sources = append(sources, Slice(own))
		}
		slices.SortStableFunc(want, func(a, b pando.LogLine) int { return a.At.Compare(b.At) })
		if got := all(t, Merge(sources...)); !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

// broken is a source that fails.
type broken struct{ closed int }

func (b *broken) Next() (pando.LogLine, error) {
	return pando.LogLine{}, pando.ErrUnavailable
}

func (b *broken) Close() error {
	b.closed++
	return nil
}

func TestABrokenSourceEndsAMerge(t *testing.T) {
	b := &broken{}
	m := Merge(Slice([]pando.LogLine{line(1, "a", "x")}), b)
	if _, err := m.Next(); !errors.Is(err, pando.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if err := m.Close(); err != nil || b.closed != 1 {
		t.Errorf("close: %v, closed %d times", err, b.closed)
	}
}

// Any line crosses the wire unchanged.
func TestLinesCrossTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var want []pando.LogLine
		var wire []byte
		for range rapid.IntRange(0, 5).Draw(t, "lines") {
			text := rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "text")
			text = bytes.ReplaceAll(text, []byte("\n"), []byte("\t"))
			l := pando.LogLine{At: time.Unix(0, rapid.Int64().Draw(t, "at")),
				Instance: "web-1", Text: string(text)}
			want = append(want, l)
			wire = Encode(wire, l)
		}
		got := all(t, Decode(io.NopCloser(bytes.NewReader(wire))))
		if !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
	long := Encode(nil, line(1, "web-1", strings.Repeat("x", LineBytesMax)))
	if got := all(t, Decode(io.NopCloser(bytes.NewReader(long)))); len(got) != 1 ||
		len(got[0].Text) != LineBytesMax {
		t.Errorf("the longest line: %d lines", len(got))
	}
}

// FuzzDecode reads any stream without a panic, and returns no line beyond the limit.
func FuzzDecode(f *testing.F) {
	f.Add([]byte("1\tweb-1\thello\n"))
	f.Add([]byte("x\tweb-1\thello\n"))
	f.Add([]byte("1\tweb-1"))
	f.Add([]byte("\n\n"))
	f.Add(bytes.Repeat([]byte("x"), LineBytesMax+2000))
	f.Fuzz(func(t *testing.T, wire []byte) {
		d := Decode(io.NopCloser(bytes.NewReader(wire)))
		for {
			l, err := d.Next()
			if err != nil {
				return
			}
			if len(l.Text) > LineBytesMax+1024 {
				t.Errorf("a line of %d bytes", len(l.Text))
			}
		}
	})
}

func TestLinesArePrintedWithTheirNamesAndTimes(t *testing.T) {
	given := []pando.LogLine{line(1767323045, "web-1", "one\ttwo"), line(1767323046, "web-2", "")}
	for _, c := range []struct {
		names, times bool
		want         string
	}{
		{false, false, "one\ttwo\n\n"},
		{true, false, "web-1  one\ttwo\nweb-2  \n"},
		{false, true, "2026-01-02T03:04:05.000Z  one\ttwo\n2026-01-02T03:04:06.000Z  \n"},
		{true, true, "web-1  2026-01-02T03:04:05.000Z  one\ttwo\n" +
			"web-2  2026-01-02T03:04:06.000Z  \n"},
	} {
		p := Printed(Slice(given), c.names, c.times)
		var got strings.Builder
		if _, err := io.CopyBuffer(&got, p, make([]byte, 5)); err != nil || got.String() != c.want {
			t.Errorf("got %q, %v, want %q", got.String(), err, c.want)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}
