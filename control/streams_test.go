package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/api/logs"
	"pando.run/pando/control/decide/decidetest"
	"pando.run/pando/driver/sim"
	"pando.run/pando/driver/trust"
	"pando.run/pando/driver/wall"
)

// folders are hosts with their logs.
type folders struct {
	pando.Peers
	mu     sync.Mutex
	logs   map[pando.HostName]map[pando.InstanceID]string // lines with their times in seconds
	asked  []pando.HostName
	breaks bool // the next followed log ends
}

// Losses is the answer of a host that lives.
func (*folders) Losses(context.Context, pando.Host) (l pando.Losses, err error) { return l, nil }

func (f *folders) Logs(
	ctx context.Context, h pando.Host, s pando.ServiceKey, ids []pando.InstanceID, q pando.LogQuery,
) (pando.LogLines, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, h.Name)
	var all []pando.LogLine
	found := false
	for _, i := range ids {
		text, ok := f.logs[h.Name][i]
		ok = ok && strings.HasPrefix(string(i), string(s.Name))
		found = found || ok
		for line := range strings.Lines(text) {
			var at int64
			_, text, _ := strings.Cut(line, " ")
			_, _ = fmt.Sscan(line, &at) // a line without a number has no time
			all = append(all, pando.LogLine{At: time.Unix(at, 0), Instance: i,
				Text: strings.TrimSuffix(text, "\n")})
		}
	}
	if !found {
		return nil, fmt.Errorf("log of %s: %w", ids, pando.ErrNotFound)
	}
	all = slices.DeleteFunc(all, func(l pando.LogLine) bool { return l.At.Before(q.Since) })
	if !q.Follow {
		return logs.Slice(all), nil
	}
	m := logs.NewMixer()
	m.Add(logs.Slice(all), nil)
	if f.breaks {
		f.breaks = false
		m.Finish()
	}
	return m, nil
}

func logsOf(t *testing.T, c *Control, i pando.InstanceID) string {
	t.Helper()
	lines, err := c.Logs(t.Context(), web, i, pando.LogQuery{Lines: 10})
	if err != nil {
		t.Fatal(err)
	}
	log := logs.Printed(lines, true, false)
	defer log.Close()
	text, err := io.ReadAll(log)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The name of an instance in a request leads to the service of that request, and to no other.
func TestALogIsOfTheServiceThatTheCallerNames(t *testing.T) {
	f := &folders{logs: map[pando.HostName]map[pando.InstanceID]string{"h1": {"vault-a": "1 a secret\n"}}}
	c := New(Config{Peers: f, Clock: wall.Clock{}})
	vault := pando.ServiceKey{Tenant: "bank", Name: "vault"}
	c.mirror.World.Committed(pando.Txn{Put: []pando.Stored{pando.Host{Name: "h1"},
		pando.Service{ServiceKey: web, Target: 1}, pando.Service{ServiceKey: vault, Target: 1},
		pando.Instance{ID: "vault-a", Service: vault, Host: "h1", Revision: 1}}}, 1)
	if _, err := c.Logs(t.Context(), vault, "vault-a", pando.LogQuery{Lines: 1}); err != nil {
		t.Fatal(err)
	}
	for _, follow := range []bool{false, true} {
		lines, err := c.Logs(t.Context(), web, "vault-a", pando.LogQuery{Lines: 1, Follow: follow})
		if !errors.Is(err, pando.ErrNotFound) {
			t.Errorf("%s reads the log of an instance of %s: %v, %v", web, vault, lines, err)
		}
	}
}

// The host of an instance that is gone is not recorded, so every host is asked, its home first.
func TestTheLogOfADeadInstanceIsFoundOnItsHost(t *testing.T) {
	f := &folders{logs: map[pando.HostName]map[pando.InstanceID]string{
		"h3": {"web-a": "1 last words\n", "web-b": ""},
	}}
	c := New(Config{Peers: f, Clock: wall.Clock{}})
	c.mirror.World.Committed(pando.Txn{Put: []pando.Stored{
		pando.Host{Name: "h1"}, pando.Host{Name: "h2"}, pando.Host{Name: "h3"},
		pando.Service{ServiceKey: web, Home: "h3", Target: 1},
	}}, 1)
	if got := logsOf(t, c, "web-a"); got != "web-a  last words\n" || len(f.asked) != 1 {
		t.Errorf("got %q from %v", got, f.asked)
	}
	f.asked = nil
	_, err := c.Logs(t.Context(), web, "web-none", pando.LogQuery{Lines: 10})
	if !errors.Is(err, pando.ErrNotFound) || len(f.asked) != 3 {
		t.Errorf("an instance that never was: %v, asked %v", err, f.asked)
	}
	if _, err := c.Logs(t.Context(), web, "../../web-a",
		pando.LogQuery{}); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("a name that is a path: %v", err)
	}
	if got := logsOf(t, c, ""); got != "" {
		t.Errorf("a service that never had an instance printed %q", got)
	}
	for n, i := range []pando.InstanceID{"web-a", "web-b"} { // web-b is newer and has printed nothing
		c.mirror.World.Committed(pando.Txn{Put: []pando.Stored{pando.Decision{ID: fmt.Sprintf("%026d", n),
			Service: web, Instance: i, Kind: pando.DecidedFailed}}}, 2)
	}
	got := logsOf(t, c, "")
	if got != "web-a  (it is gone; no instance of web lives)\nweb-a  last words\n" {
		t.Errorf("without a living instance: %q", got)
	}
}

// two is a control with a service on two hosts, in the middle of a move.
func two(f *folders) *Control {
	c := New(Config{Peers: f, Clock: wall.Clock{}})
	c.mirror.World.Committed(pando.Txn{Put: []pando.Stored{
		pando.Host{Name: "h1"}, pando.Host{Name: "h2"},
		pando.Service{ServiceKey: web, Home: "h2", Target: 1},
		pando.Instance{Service: web, Host: "h1", ID: "web-a", Phase: pando.PhaseReady},
		pando.Instance{Service: web, Host: "h2", ID: "web-b", Phase: pando.PhaseReady},
	}}, 1)
	return c
}

func TestLinesOfAllHostsComeInTheOrderOfTheirTimes(t *testing.T) {
	f := &folders{logs: map[pando.HostName]map[pando.InstanceID]string{
		"h1": {"web-a": "1 one\n4 four\n"}, "h2": {"web-b": "2 two\n3 three\n"},
	}}
	c := two(f)
	want := "web-a  one\nweb-b  two\nweb-b  three\nweb-a  four\n"
	if got := logsOf(t, c, ""); got != want {
		t.Errorf("got %q", got)
	}
	if len(f.asked) != 2 {
		t.Errorf("asked %v, want each host once", f.asked)
	}
	for _, q := range []pando.LogQuery{{Lines: -1}, {Lines: pando.LogLinesMax + 1}, {Match: "("}} {
		if _, err := c.Logs(t.Context(), web, "", q); !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	long := pando.LogQuery{Match: strings.Repeat("a", 1001)}
	if _, err := c.Logs(t.Context(), web, "", long); !errors.Is(err, pando.ErrTooLarge) {
		t.Errorf("a long expression: %v", err)
	}
}

// A follower gets the lines of an instance that starts later, and those after a break once.
func TestAFollowedServiceIncludesInstancesThatStartLater(t *testing.T) {
	f := &folders{breaks: true, logs: map[pando.HostName]map[pando.InstanceID]string{
		"h1": {"web-a": "1 one\n"}, "h2": {"web-b": "2 two\n", "web-c": "5 later\n"},
	}}
	c := two(f)
	lines, err := c.Logs(t.Context(), web, "", pando.LogQuery{Lines: 10, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer lines.Close()
	got := map[string]int{}
	next := func(want ...string) {
		t.Helper()
		for range want {
			l, err := lines.Next()
			if err != nil {
				t.Fatal(err)
			}
			got[l.Text]++
		}
		for _, w := range want {
			if got[w] != 1 {
				t.Fatalf("%q came %d times: %v", w, got[w], got)
			}
		}
	}
	next("one", "two")
	f.mu.Lock()
	f.logs["h1"]["web-a"] += "6 after the break\n"
	f.mu.Unlock()
	c.mirror.Mu.Lock()
	c.mirror.World.Committed(pando.Txn{Put: []pando.Stored{
		pando.Instance{Service: web, Host: "h2", ID: "web-c", Phase: pando.PhaseStarting},
		pando.Instance{Service: web, Host: "h2", ID: "web-d", Phase: pando.PhasePlaced}, // no log yet
	}}, 2)
	c.mirror.Mu.Unlock()
	next("later", "after the break")
	if err := lines.Close(); err != nil {
		t.Error(err)
	}
	if _, err := lines.Next(); err != io.EOF {
		t.Errorf("after Close: %v", err)
	}
}

func (f *folders) Usage(
	_ context.Context, h pando.Host, _ pando.ServiceKey,
) ([]pando.InstanceUsage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, h.Name)
	if h.Name == "h1" {
		return nil, pando.ErrUnavailable
	}
	return []pando.InstanceUsage{{Instance: "web-b", Host: h.Name, PIDs: new(int64(3))},
		{Instance: "web-a", Host: "h1", PIDs: new(int64(4))}}, nil
}

// One host does not answer, and the other one claims its instance.
func TestStatsNameAHostThatDoesNotAnswer(t *testing.T) {
	f := &folders{}
	all, err := two(f).Stats(t.Context(), web)
	if err != nil || len(all) != 2 || len(f.asked) != 2 {
		t.Fatalf("%+v, %v, asked %v", all, err, f.asked)
	}
	if a := all[0]; a.Instance != "web-a" || !strings.Contains(a.Missing, "host h1 does not answer") ||
		a.PIDs != nil {
		t.Errorf("got %+v", a)
	}
	if b := all[1]; b.Instance != "web-b" || b.Missing != "" || b.PIDs == nil || *b.PIDs != 3 {
		t.Errorf("got %+v", b)
	}
}

// The watch shows neither a secret nor a token, whoever makes one.
func TestTheWatchShowsNeitherSecretsNorTokens(t *testing.T) {
	a, err := trust.OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c := New(Config{Peers: sim.NewPeers(), Clock: wall.Clock{}, IDs: &decidetest.Counting{},
		Registry: sim.NewRegistry(1, 0), Log: slog.New(slog.DiscardHandler), Vault: a.Vault()})
	c.mirror.World.Committed(pando.Txn{Put: []pando.Stored{
		pando.Service{ServiceKey: web, Target: 1},
		pando.Revision{Service: web, Number: 1, Spec: pando.Spec{Name: "web",
			StoredSecrets: []pando.StoredSecret{{Name: "key"}}}},
	}}, 1)
	go func() { _ = c.feedFrom(t.Context(), 0) }()
	watch := c.Watch(t.Context(), 0)
	token := pando.Token{TokenKey: pando.TokenKey{Tenant: "acme", Name: "ci"},
		Hash: pando.TokenHash([]byte(strings.Repeat("a", 32))), Until: time.Now().Add(time.Hour)}
	if err := c.SetToken(t.Context(), token, false, anna); err != nil {
		t.Fatal(err)
	}
	if _, err := c.SetSecret(t.Context(), pando.SecretKey{Tenant: "default", Name: "key"},
		[]byte("hush"), anna); err != nil {
		t.Fatal(err)
	}
	for change := range watch {
		if change.Kind == pando.KindSecret || change.Kind == pando.KindToken ||
			strings.Contains(fmt.Sprint(change.Value), "hush") {
			t.Errorf("the watch has %+v", change)
		}
		if change.Kind == pando.KindDecision { // of the secret, which came last
			return
		}
	}
}
