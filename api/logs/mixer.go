package logs

import (
	"io"
	"sync"

	"pando.run/pando"
)

// Mixer passes the lines of several sources on as they arrive. Sources may be added at any time.
type Mixer struct {
	out    chan pando.LogLine
	closed chan struct{}
	mu     sync.Mutex
	open   map[pando.LogLines]bool
	wg     sync.WaitGroup
	finish sync.Once
	end    sync.Once
}

// NewMixer returns a mixer without sources.
func NewMixer() *Mixer {
	return &Mixer{
		out: make(chan pando.LogLine), closed: make(chan struct{}), open: map[pando.LogLines]bool{},
	}
}

// Add passes on the lines of one more source until it ends. Then it closes the source and calls
// ended with the last line, if ended is not nil. A closed mixer closes the source at once.
func (m *Mixer) Add(s pando.LogLines, ended func(last pando.LogLine)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.closed:
		s.Close()
		return
	default:
	}
	m.open[s] = true
	m.wg.Go(func() {
		last := m.pass(s)
		m.mu.Lock()
		delete(m.open, s)
		m.mu.Unlock()
		s.Close()
		if ended != nil {
			ended(last)
		}
	})
}

func (m *Mixer) pass(s pando.LogLines) (last pando.LogLine) {
	for {
		l, err := s.Next()
		if err != nil {
			return last
		}
		select {
		case m.out <- l:
			last = l
		case <-m.closed:
			return last
		}
	}
}

// Finish ends the mixer with the last of its sources. None is added after it.
func (m *Mixer) Finish() {
	m.finish.Do(func() {
		go func() {
			m.wg.Wait()
			close(m.out)
		}()
	})
}

// Next returns the next line of any source. After Close, or after Finish and the end of all
// sources, it returns io.EOF.
func (m *Mixer) Next() (pando.LogLine, error) {
	select {
	case l, ok := <-m.out:
		if ok {
			return l, nil
		}
	case <-m.closed:
	}
	return pando.LogLine{}, io.EOF
}

// Close closes all sources.
func (m *Mixer) Close() error {
	m.end.Do(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		close(m.closed)
		for s := range m.open {
			s.Close()
		}
	})
	return nil
}
