package logs

import (
	"errors"
	"io"
	"sync"
	"testing"

	"pando.run/pando"
)

// live is a source that waits for lines until it is closed.
type live struct {
	lines  chan pando.LogLine
	closed chan struct{}
	once   sync.Once
}

func newLive() *live {
	return &live{lines: make(chan pando.LogLine, 10), closed: make(chan struct{})}
}

func (l *live) Next() (pando.LogLine, error) {
	select {
	case one := <-l.lines:
		return one, nil
	case <-l.closed:
		return pando.LogLine{}, io.EOF
	}
}

func (l *live) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func TestAMixerPassesLinesOnAsTheyArrive(t *testing.T) {
	m := NewMixer()
	a, b := newLive(), newLive()
	m.Add(a, nil)
	for _, s := range []*live{a, b} {
		if s == b {
			m.Add(b, nil) // while the other one is open
		}
		s.lines <- line(1, "web-1", "x")
		if l, err := m.Next(); err != nil || l.Text != "x" {
			t.Fatalf("%+v, %v", l, err)
		}
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	<-a.closed
	<-b.closed
	if _, err := m.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after Close: %v", err)
	}
	late := newLive()
	m.Add(late, nil)
	<-late.closed
	if err := m.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

func TestAFinishedMixerEndsWithItsLastSource(t *testing.T) {
	m := NewMixer()
	last := make(chan pando.LogLine, 2)
	m.Add(Slice([]pando.LogLine{line(1, "a", "x"), line(2, "a", "y")}),
		func(l pando.LogLine) { last <- l })
	m.Add(&broken{}, func(l pando.LogLine) { last <- l })
	m.Finish()
	m.Finish()
	if got := all(t, m); len(got) != 2 {
		t.Errorf("got %v", got)
	}
	texts := (<-last).Text + (<-last).Text
	if texts != "y" {
		t.Errorf("the sources ended after %q", texts)
	}
}
