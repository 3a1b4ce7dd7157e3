package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/api/logs"
	"pando.run/pando/api/problem"
)

const patience = time.Minute

// host is an agent that answers with values from the test.
type host struct {
	err      error
	missing  string
	applied  pando.StoreRevision
	of       []pando.ServiceKey
	asked    pando.LogQuery
	closed   chan struct{}
	counters []pando.EndpointCounters
	packets  [][]byte
}

func (h *host) Applied(
	_ context.Context, of []pando.ServiceKey, at pando.StoreRevision,
) (string, error) {
	h.applied, h.of = at, of
	return h.missing, h.err
}

func (h *host) Logs(
	_ context.Context, s pando.ServiceKey, i []pando.InstanceID, q pando.LogQuery,
) (pando.LogLines, error) {
	if h.err != nil {
		return nil, h.err
	}
	h.asked, h.of = q, []pando.ServiceKey{s}
	all := []pando.LogLine{}
	for n, one := range i {
		all = append(all, pando.LogLine{At: time.Unix(7, int64(n)), Instance: one, Text: "a\tb\xff"})
	}
	return &lines{LogLines: logs.Slice(all), follow: q.Follow, closed: h.closed}, nil
}

// lines are lines of logs that end with Close if they are followed.
type lines struct {
	pando.LogLines
	follow bool
	closed chan struct{}
	once   sync.Once
}

func (l *lines) Next() (pando.LogLine, error) {
	one, err := l.LogLines.Next()
	if err != nil && l.follow {
		<-l.closed
	}
	return one, err
}

func (l *lines) Close() error {
	if l.follow {
		l.once.Do(func() { close(l.closed) })
	}
	return nil
}

func (h *host) Losses(context.Context) (pando.Losses, error) {
	return pando.Losses{Dropped: map[pando.DropReason]uint64{pando.DroppedSpoofed: 3},
		Evicted: 2}, h.err
}

func (h *host) Work(_ context.Context, after pando.WorkMark) (pando.WorkBatch, error) {
	return pando.WorkBatch{Journal: after.Journal, Number: after.Number + 1,
		Lines: []pando.WorkLine{{Tenant: "acme", Work: pando.Work{BytesIn: 7}}}}, nil
}

func (h *host) Usage(_ context.Context, s pando.ServiceKey) ([]pando.InstanceUsage, error) {
	return []pando.InstanceUsage{{Instance: "web-1", Service: s, PIDs: new(int64(3))}}, h.err
}

func (h *host) Volumes(
	_ context.Context, q pando.VolumeQuery,
) ([]pando.KeptVolume, error) {
	v := pando.KeptVolume{Service: q.Service, Name: q.Name, Host: "h1", Partial: q.Measure}
	return []pando.KeptVolume{v}, h.err
}

func (h *host) RemoveVolume(_ context.Context, s pando.ServiceKey, name string) error {
	if h.err == nil && (s != pando.DefaultService("web") || name != "data") {
		return pando.ErrNotFound
	}
	return h.err
}

func (h *host) Snapshot(
	_ context.Context, ask pando.SnapshotAsk,
) (pando.SealedSnapshot, error) {
	return pando.SealedSnapshot{Seal: "proof", SnapshotStatus: pando.SnapshotStatus{
		Service: pando.DefaultService("web"), Instance: ask.Instance,
		Encrypted: !ask.Plain}}, h.err
}

func (h *host) Snapshots(
	_ context.Context, s pando.ServiceKey,
) ([]pando.SealedSnapshot, error) {
	return []pando.SealedSnapshot{{SnapshotStatus: pando.SnapshotStatus{Service: s,
		Digest: "sha256:1"}}}, h.err
}

func (h *host) DropSnapshot(_ context.Context, s pando.ServiceKey, digest string) error {
	if h.err == nil && (s != pando.DefaultService("web") || digest != "sha256:1") {
		return pando.ErrNotFound
	}
	return h.err
}

// Exec returns a command that sends back its input.
func (h *host) Exec(
	_ context.Context, i pando.InstanceID, s pando.SessionSpec,
) (io.ReadWriteCloser, error) {
	if h.err != nil {
		return nil, h.err
	}
	if i != "web-1" || s.Command[0] != "cat" || !s.Terminal {
		return nil, fmt.Errorf("%w: %s %+v", pando.ErrInvalid, i, s)
	}
	mine, theirs := net.Pipe()
	go func() {
		_, _ = io.Copy(mine, mine)
		close(h.closed)
	}()
	return theirs, nil
}

// Meters sends one measurement for each host in its counters, then waits for the end.
func (h *host) Meters(ctx context.Context) (<-chan pando.Meters, error) {
	if h.err != nil {
		return nil, h.err
	}
	out := make(chan pando.Meters, len(h.counters))
	for _, c := range h.counters {
		out <- pando.Meters{Host: "h1", Link: 0.5,
			All: []pando.Meter{{Instance: c.Instance, Service: c.Service, CPU: 0.25}}}
	}
	context.AfterFunc(ctx, func() { close(out) })
	return out, nil
}

func (h *host) Counters(context.Context) ([]pando.EndpointCounters, error) {
	return h.counters, h.err
}

func (h *host) StateLog(
	_ context.Context, _ pando.ServiceKey, max int,
) ([]pando.StateCommit, error) {
	return make([]pando.StateCommit, max), h.err
}

// TakeState checks the bytes of a host.
func (h *host) TakeState(
	_ context.Context, from pando.HostName, r io.Reader,
) (pando.Receipt, error) {
	b, err := io.ReadAll(r)
	if err != nil || h.err != nil {
		return pando.Receipt{}, errors.Join(err, h.err)
	}
	return pando.Receipt{Taken: string(from) == "h2" && string(b) == "objects", Epoch: 7}, nil
}

// GiveState sends back the name of the wanted commit.
func (h *host) GiveState(_ context.Context, q pando.StateWanted, w io.Writer) error {
	if h.err != nil {
		return h.err
	}
	_, err := fmt.Fprint(w, q.Service, " ", q.Want)
	return err
}

func (h *host) State() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.URL.Path+"?"+r.URL.RawQuery)
	})
}

func serve(t *testing.T, h *host, network string) (pando.Host, *Client) {
	t.Helper()
	dir, err := os.MkdirTemp("", "pt")
	if err != nil {
		t.Fatal(err)
	}
	addr, scheme := "127.0.0.1:0", "http://"
	if network == "unix" {
		addr, scheme = filepath.Join(dir, "agent"), "unix://"
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: Handler(h)}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(l) }()
	c := New(Reach{})
	t.Cleanup(func() { c.Close(); s.Close(); <-ended; os.RemoveAll(dir) })
	return pando.Host{Name: "h1", Endpoint: scheme + l.Addr().String()}, c
}

func TestEveryQuestionOverBothNetworks(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			a := &host{
				closed: make(chan struct{}), missing: "web: a part", counters: []pando.EndpointCounters{{Instance: "web-1", Flows: 7}},
			}
			h, c := serve(t, a, network)
			ctx := t.Context()
			of := []pando.ServiceKey{pando.DefaultService("web"), {Tenant: "acme", Name: "shop"}}
			for n := range 3 {
				missing, err := c.Applied(ctx, h, of[:n], 42)
				if err != nil || n > 0 && missing != a.missing ||
					n > 0 && a.applied != 42 || !slices.Equal(a.of, of[:n]) {
					t.Errorf("applied: %d of %v, %v", a.applied, a.of, err)
				}
			}
			if got, err := c.Losses(ctx, h); err != nil || got.Dropped[pando.DroppedSpoofed] != 3 ||
				got.Evicted != 2 {
				t.Errorf("losses: %+v, %v", got, err)
			}
			if got, err := c.Counters(ctx, h); err != nil || len(got) != 1 || got[0].Flows != 7 {
				t.Errorf("counters: %+v, %v", got, err)
			}
			if got, err := c.StateLog(ctx, h, pando.DefaultService("web"), 3); err != nil || len(got) != 3 {
				t.Errorf("state log: %+v, %v", got, err)
			}
			checkLogs(t, a, h, c)
			for _, s := range []pando.ServiceKey{{}, pando.DefaultService("web")} {
				all, err := c.Usage(ctx, h, s)
				if err != nil || len(all) != 1 || all[0].Service != s || all[0].PIDs == nil || *all[0].PIDs != 3 {
					t.Errorf("usage of %s: %+v, %v", s, all, err)
				}
			}
			w := httptest.NewRecorder()
			c.State(h).ServeHTTP(w,
				httptest.NewRequest("GET", "/web.git/info/refs?service=git-upload-pack", nil))
			if w.Body.String() != "/web.git/info/refs?service=git-upload-pack" {
				t.Errorf("state: %q", w.Body)
			}
		})
	}
}

var vault = pando.ServiceKey{Tenant: "bank", Name: "vault"}

// checkLogs checks that a query and the lines of two instances cross the wire unchanged.
func checkLogs(t *testing.T, a *host, h pando.Host, c *Client) {
	t.Helper()
	q := pando.LogQuery{Lines: 20, Since: time.Unix(5, 3), Match: "a b&c=+"}
	log, err := c.Logs(t.Context(), h, vault, []pando.InstanceID{"web-1", "web-2"}, q)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for n, i := range []pando.InstanceID{"web-1", "web-2"} {
		want := pando.LogLine{At: time.Unix(7, int64(n)), Instance: i, Text: "a\tb\xff"}
		if got, err := log.Next(); err != nil || got != want {
			t.Errorf("line %d: %+v, %v", n, got, err)
		}
	}
	if _, err := log.Next(); err != io.EOF {
		t.Errorf("after the last line: %v", err)
	}
	if a.asked != q || len(a.of) != 1 || a.of[0] != vault {
		t.Errorf("the host was asked %+v of %s, want %+v", a.asked, a.of, q)
	}
}

func TestAFollowedLogEndsOnTheHostWhenTheAskerGoes(t *testing.T) {
	a := &host{closed: make(chan struct{})}
	h, c := serve(t, a, "unix")
	ctx, cancel := context.WithCancel(t.Context())
	log, err := c.Logs(ctx, h, vault, []pando.InstanceID{"web-1"}, pando.LogQuery{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if line, err := log.Next(); err != nil || line.Instance != "web-1" {
		t.Fatalf("%+v, %v", line, err)
	}
	cancel()
	select {
	case <-a.closed:
	case <-time.After(patience):
		t.Fatal("the host still follows the log")
	}
}

func TestSentinelsCrossTheWire(t *testing.T) {
	a := &host{}
	h, c := serve(t, a, "unix")
	for _, k := range problem.Kinds {
		a.err = fmt.Errorf("a sentence about web: %w", k.Err)
		_, err := c.Applied(t.Context(), h, []pando.ServiceKey{pando.DefaultService("web")}, 1)
		if !errors.Is(err, k.Err) || !strings.Contains(err.Error(), "a sentence about web") {
			t.Errorf("%v came as %v", k.Err, err)
		}
	}
	bad := pando.ServiceKey{Tenant: "default", Name: "No"}
	for _, of := range [][]pando.ServiceKey{{bad}, {pando.DefaultService("web"), bad}} {
		if _, err := c.Applied(t.Context(), h, of, 1); !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("a bad name among %v: %v", of, err)
		}
	}
}

func TestAHostThatDoesNotAnswerIsNamed(t *testing.T) {
	c := New(Reach{})
	defer c.Close()
	for _, endpoint := range []string{"unix:///nowhere/agent", "http://127.0.0.1:1"} {
		h := pando.Host{Name: "h7", Endpoint: endpoint}
		_, err := c.Counters(t.Context(), h)
		if !errors.Is(err, pando.ErrUnavailable) || !strings.Contains(err.Error(), "h7") {
			t.Errorf("%s: %v", endpoint, err)
		}
		w := httptest.NewRecorder()
		ctx, cancel := context.WithTimeout(t.Context(), 2*stateAskAgain)
		c.State(h).ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/x", nil))
		cancel()
		if w.Code != http.StatusBadGateway {
			t.Errorf("%s: state answered %d", endpoint, w.Code)
		}
	}
	_, err := c.Counters(t.Context(), pando.Host{Name: "h7", Endpoint: "nonsense"})
	if !errors.Is(err, pando.ErrInvalid) {
		t.Errorf("nonsense: %v", err)
	}
}

// decider answers an ask with itself.
type decider struct{ err error }

func (d decider) Answer(
	_ context.Context, by pando.Fence, i pando.Intent, _ func(),
) ([]pando.Record, error) {
	return []pando.Record{{Key: i.Key(), Value: []byte(by.Key), Modified: by.Created}}, d.err
}

func TestAnAskAndItsAnswerCrossTheWire(t *testing.T) {
	for _, wrong := range []error{nil, pando.ErrStoreFull, pando.ErrFenced} {
		s := httptest.NewServer(ControlHandler(decider{wrong}))
		c := New(Reach{})
		control := Control{Client: c, Server: pando.Host{Name: "h1", Endpoint: s.URL}}
		ask := pando.Intent{ID: "1", Service: pando.DefaultService("web"), Verb: pando.VerbReplicate}
		got, err := control.Answer(t.Context(), pando.Fence{Key: "epoch", Created: 7}, ask, func() {})
		if !errors.Is(err, wrong) || wrong == nil && (len(got) != 1 || got[0].Key != ask.Key() ||
			string(got[0].Value) != "epoch" || got[0].Modified != 7) {
			t.Errorf("%v: %+v, %v", wrong, got, err)
		}
		c.Close()
		s.Close()
		if _, err := control.Answer(t.Context(), pando.Fence{}, ask,
			func() {}); !errors.Is(err, pando.ErrUnavailable) {
			t.Errorf("a server that is away: %v", err)
		}
	}
}

func TestASessionCrossesTheWireAndEndsWithItsCaller(t *testing.T) {
	for _, scheme := range []string{"unix", "tcp"} {
		a := &host{closed: make(chan struct{})}
		h, c := serve(t, a, scheme)
		spec := pando.SessionSpec{Command: []string{"cat"}, Terminal: true}
		conn, err := c.Exec(t.Context(), h, "web-1", spec)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 5)
		if _, err := conn.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, b); err != nil || string(b) != "hello" {
			t.Fatalf("%q, %v", b, err)
		}
		conn.Close()
		select {
		case <-a.closed:
		case <-time.After(patience):
			t.Fatal("the command still runs")
		}
		for _, bad := range []pando.SessionSpec{{}, {Command: []string{""}},
			{Command: []string{"a\x00"}}, {Command: []string{"dog"}}} {
			if _, err := c.Exec(t.Context(), h, "web-1", bad); !errors.Is(err, pando.ErrInvalid) {
				t.Errorf("%+v: %v", bad, err)
			}
		}
		a.err = fmt.Errorf("%w: 16 sessions", pando.ErrRefused)
		if _, err := c.Exec(t.Context(), h, "web-1", spec); !errors.Is(err, pando.ErrRefused) {
			t.Errorf("a refusal: %v", err)
		}
	}
}
