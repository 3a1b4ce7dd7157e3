package control

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/wall"
)

// printers are hosts whose instances print, and whose sources of lines break off.
type printers struct {
	pando.Peers
	mu    sync.Mutex
	lines map[pando.InstanceID][]pando.LogLine
	open  map[pando.HostName][]*printed
	away  map[pando.HostName]bool
	mute  bool // no host answers
}

// Losses is the question by which a follower finds a silent host.
func (p *printers) Losses(context.Context, pando.Host) (l pando.Losses, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mute {
		err = fmt.Errorf("%w: the host does not answer", pando.ErrUnreachable)
	}
	return l, err
}

// printed is a source of the lines of some instances.
type printed struct {
	of     *printers
	ids    []pando.InstanceID
	at     map[pando.InstanceID]int
	since  time.Time
	follow bool
	broken bool
}

func (p *printers) Logs(
	_ context.Context, h pando.Host, _ pando.ServiceKey, ids []pando.InstanceID, q pando.LogQuery,
) (pando.LogLines, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away[h.Name] {
		return nil, pando.ErrUnavailable
	}
	s := &printed{of: p, ids: ids, at: map[pando.InstanceID]int{}, since: q.Since, follow: q.Follow}
	for _, i := range ids {
		s.at[i] = max(0, len(p.lines[i])-q.Lines)
	}
	p.open[h.Name] = append(p.open[h.Name], s)
	return s, nil
}

func (s *printed) Next() (pando.LogLine, error) {
	for {
		s.of.mu.Lock()
		for _, i := range s.ids {
			for all := s.of.lines[i]; !s.broken && s.at[i] < len(all); {
				l := all[s.at[i]]
				s.at[i]++
				if !l.At.Before(s.since) {
					s.of.mu.Unlock()
					return l, nil
				}
			}
		}
		over := s.broken || !s.follow
		s.of.mu.Unlock()
		if over {
			return pando.LogLine{}, io.EOF
		}
		time.Sleep(10 * time.Millisecond) // virtual
	}
}

func (s *printed) Close() error {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.broken = true
	return nil
}

// print adds a line to the log of an instance, by the clock of its host.
func (p *printers) print(i pando.InstanceID, n int, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines[i] = append(p.lines[i], pando.LogLine{Instance: i, At: at, Text: fmt.Sprint(n)})
}

// restart breaks the sources of a host off. It answers again after a while.
func (p *printers) restart(h pando.HostName, after time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.open[h] {
		s.broken = true
	}
	p.open[h], p.away[h] = nil, true
	time.AfterFunc(after, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.away[h] = false
	})
}

// readAll reads lines by their instance until the end. read closes then.
func readAll(lines pando.LogLines) (got map[pando.InstanceID][]string, read chan struct{}) {
	got, read = map[pando.InstanceID][]string{}, make(chan struct{})
	go func() {
		defer close(read)
		for {
			l, err := lines.Next()
			if err != nil {
				return
			}
			got[l.Instance] = append(got[l.Instance], l.Text)
		}
	}()
	return got, read
}

// Agents restart one after the other, with clocks a minute apart, while each instance prints. One
// ends in between, and one starts. The caller gets every line of every instance once, in its order.
func TestAFollowerLosesNoLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &printers{lines: map[pando.InstanceID][]pando.LogLine{},
			open: map[pando.HostName][]*printed{}, away: map[pando.HostName]bool{}}
		c := New(Config{Peers: p, Clock: wall.Clock{}})
		skew := map[pando.HostName]time.Duration{"h1": 0, "h2": -time.Minute, "h3": time.Minute}
		at := map[pando.InstanceID]pando.HostName{"web-a": "h1", "web-b": "h2", "web-c": "h3",
			"web-d": "h3"}
		all := []pando.Stored{pando.Service{ServiceKey: web, Home: "h2", Target: 1}}
		for h := range skew {
			all = append(all, pando.Host{Name: h})
		}
		for _, i := range []pando.InstanceID{"web-a", "web-b", "web-c"} {
			all = append(all, pando.Instance{Service: web, Host: at[i], ID: i, Phase: pando.PhaseReady})
		}
		c.mirror.World.Committed(pando.Txn{Put: all}, 1)
		lines, err := c.Logs(t.Context(), web, "", pando.LogQuery{Lines: 10, Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		got, read := readAll(lines)
		until := map[pando.InstanceID]int{"web-a": 400, "web-b": 400, "web-c": 130, "web-d": 400}
		for n := range 400 { // 20 s
			for i, h := range at {
				if n < until[i] && (i != "web-d" || n >= 200) {
					p.print(i, n, time.Now().Add(skew[h]).Truncate(200*time.Millisecond)) // 4 share a time
				}
			}
			switch n {
			case 60:
				p.restart("h2", 2*time.Second)
			case 100:
				p.restart("h1", 3*time.Second)
			case 120:
				p.restart("h3", time.Second)
			case 131: // web-c printed its last lines while its source was broken off
				gone := pando.Instance{Service: web, Host: "h3", ID: "web-c"}
				c.mirror.Take(pando.Batch{Revision: 3, Changes: []pando.Record{{Key: gone.Key(), Modified: 3}}},
					false)
			case 201:
				c.mirror.Mu.Lock()
				c.mirror.World.Committed(pando.Txn{Put: []pando.Stored{pando.Instance{Service: web, Host: "h3",
					ID: "web-d", Phase: pando.PhaseStarting}}}, 4)
				c.mirror.Mu.Unlock()
			case 300:
				p.restart("h2", time.Second)
			}
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		lines.Close()
		<-read
		for i := range at {
			want := []string{}
			for _, l := range p.lines[i] {
				want = append(want, l.Text)
			}
			if fmt.Sprint(got[i]) != fmt.Sprint(want) {
				t.Errorf("%s printed %d lines, and %d came:\n got %v\nwant %v", i, len(want), len(got[i]),
					got[i], want)
			}
		}
		time.Sleep(time.Minute)
	})
}

// A host that stops to answer is named in a followed log within 5 s, once, and so is its return.
func TestAFollowedLogNamesASilentHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &printers{lines: map[pando.InstanceID][]pando.LogLine{},
			open: map[pando.HostName][]*printed{}, away: map[pando.HostName]bool{}}
		c := New(Config{Peers: p, Clock: wall.Clock{}})
		c.mirror.World.Committed(pando.Txn{Put: []pando.Stored{
			pando.Service{ServiceKey: web, Home: "h1", Target: 1}, pando.Host{Name: "h1"},
			pando.Instance{Service: web, Host: "h1", ID: "web-a", Phase: pando.PhaseReady},
		}}, 1)
		lines, err := c.Logs(t.Context(), web, "", pando.LogQuery{Lines: 10, Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		got, read := readAll(lines)
		mute := func(is bool) {
			p.mu.Lock()
			p.mute = is
			p.mu.Unlock()
			time.Sleep(5 * time.Second)
			synctest.Wait()
		}
		mute(false)
		for _, is := range []struct {
			mute bool
			want string
		}{
			{true, "[(its log cannot be read now: out of reach: the host does not answer)]"},
			{true, "[(its log cannot be read now: out of reach: the host does not answer)]"},
			{false, "[(its log cannot be read now: out of reach: the host does not answer) " +
				"(its log can be read again)]"},
		} {
			if mute(is.mute); fmt.Sprint(got["web-a"]) != is.want {
				t.Errorf("silent %v: got %v, want %s", is.mute, got["web-a"], is.want)
			}
		}
		lines.Close()
		<-read
		time.Sleep(time.Minute)
	})
}
