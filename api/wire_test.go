package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// A caller on the other side of the wire tests for the same sentinel and reads the same text.
func TestEverySentinelSurvivesTheWire(t *testing.T) {
	codes := map[string]error{}
	for _, k := range problems {
		if other, taken := codes[k.Code]; taken {
			t.Errorf("code %q stands for %v and for %v", k.Code, other, k.Err)
		}
		codes[k.Code] = k.Err
		sent := problemOf(fmt.Errorf("pin web: %w: because", k.Err), nil)
		text, err := json.Marshal(sent)
		if err != nil {
			t.Fatal(err)
		}
		var arrived Problem
		if err := json.Unmarshal(text, &arrived); err != nil {
			t.Fatal(err)
		}
		back := arrived.err()
		if !errors.Is(back, k.Err) || back.Error() != sent.Detail || sent.Status < 400 ||
			sent.Title == "" {
			t.Errorf("%v becomes %v by %s", k.Err, back, text)
		}
	}
	if p := problemOf(errors.New("a bug"), nil); p.Status != http.StatusInternalServerError ||
		p.Code != "internal" {
		t.Errorf("an error without a sentinel: %+v", p)
	}
}

// TestNoSentinelIsLeftOut compares the table of problems with the errors of the root.
func TestNoSentinelIsLeftOut(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../doc.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	sentinels := 0
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(v.Names[0].Name, "Err") {
			return true
		}
		sentinels++
		text := v.Values[0].(*ast.CallExpr).Args[0].(*ast.BasicLit).Value
		for _, k := range problems {
			if text == fmt.Sprintf("%q", k.Err.Error()) {
				return true
			}
		}
		t.Errorf("%s has no code on the wire: a remote caller cannot test for it", v.Names[0].Name)
		return true
	})
	if sentinels < 10 {
		t.Errorf("found %d sentinels: the test looks in the wrong place", sentinels)
	}
}

func TestACallerIsAskedToTryAgainOnlyIfThatHelps(t *testing.T) {
	for err, want := range map[error]string{
		pando.ErrUnavailable: "1", pando.ErrRefused: "", pando.ErrInvalid: "", pando.ErrStoreFull: "",
	} {
		w := httptest.NewRecorder()
		fail(w, err, nil)
		if got := w.Header().Get("Retry-After"); got != want {
			t.Errorf("%v: Retry-After %q, want %q", err, got, want)
		}
		if w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%v: content type %q", err, w.Header().Get("Content-Type"))
		}
	}
}

// The client reads the events that the server writes. It resumes at the last commit of which it has
// every change.
func TestTheClientReadsTheServersEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		services := []pando.ServiceKey{pando.DefaultService("a"), pando.DefaultService("b")}
		only := pando.ServiceKey{Tenant: pando.DefaultTenant,
			Name: rapid.SampledFrom([]pando.ServiceName{"", "a"}).Draw(t, "filter")}
		var stream strings.Builder
		var want []pando.Change
		complete := pando.StoreRevision(0)
		for at := pando.StoreRevision(1); at < 10; at++ {
			n := rapid.IntRange(1, 3).Draw(t, "changes")
			for k := range n {
				s := rapid.SampledFrom(services).Draw(t, "service")
				c := pando.Change{Revision: at, Kind: pando.KindService, Key: s.Key(), More: k < n-1}
				c.Value = pando.Service{ServiceKey: s, Reason: rapid.String().Draw(t, "reason")}
				stream.Write(change(c, only))
				if only.Name == "" || s == only {
					want = append(want, c)
				}
			}
			complete = at
			if rapid.IntRange(0, 3).Draw(t, "silence") == 0 {
				stream.WriteString(": alive\n\n")
			}
		}
		last, got := "0", []Event{}
		if err := listen(strings.NewReader(stream.String()), &last,
			func(e Event) { got = append(got, e) }); err != nil {
			t.Fatal(err)
		}
		if last != fmt.Sprint(complete) {
			t.Fatalf("the client resumes at %s, want %d", last, complete)
		}
		if len(got) != len(want) {
			t.Fatalf("%d events, want %d", len(got), len(want))
		}
		for n, e := range got {
			var s pando.Service
			if err := json.Unmarshal(e.Value, &s); err != nil || e.Key != want[n].Key || !reflect.DeepEqual(s, want[n].Value) {
				t.Fatalf("event %d is %+v (%v), want %+v", n, e, err, want[n])
			}
		}
	})
}

// A watch that the server ends with a problem ends with its sentinel.
func TestAProblemEndsAWatch(t *testing.T) {
	text := change(pando.Change{Err: fmt.Errorf("watch: %w", pando.ErrCompacted)}, pando.ServiceKey{})
	last := "7"
	err := listen(strings.NewReader(string(text)), &last, func(e Event) {
		t.Errorf("an event: %+v",
			e)
	})
	if !errors.Is(err, pando.ErrCompacted) || last != "7" {
		t.Errorf("%v, at %s", err, last)
	}
}

// FuzzEventStream reads any stream without a panic. A stream that breaks never moves the client
// beyond the ids that it has read.
func FuzzEventStream(f *testing.F) {
	f.Add("id: 4\nevent: service\ndata: {\"revision\":4,\"kind\":\"service\"}\n\n")
	f.Add("data: {\n\n")
	f.Add("event: problem\ndata: {}\n\n")
	f.Add("event: problem\ndata: 1\n\n")
	f.Add("id: x\n\n\n: alive\n\ndata: {}")
	f.Add("id\ndata\n\n")
	f.Fuzz(func(t *testing.T, stream string) {
		last := "0"
		_ = listen(strings.NewReader(stream), &last, func(Event) {}) // errors are allowed
		if last != "0" && !strings.Contains(stream, "id: "+last) {
			t.Errorf("the client is at %q, which the stream does not have", last)
		}
	})
}

func TestAnUnknownFieldIsNamedWithItsNeighbour(t *testing.T) {
	for body, want := range map[string]string{
		`{"reasn": "x"}`: `did you mean "reason"?`,
		`{"zzzzz": 1}`:   "known are reason, inputs, wait",
		`{} {}`:          "after its end at byte 3",
		`{`:              "unexpected EOF",
	} {
		var a pando.Ask
		err := read(httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)), &a)
		if !errors.Is(err, pando.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
	var a pando.Ask
	long := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat(" ",
		bodyBytesMax+1)))
	if err := read(long, &a); !errors.Is(err, pando.ErrTooLarge) {
		t.Errorf("a body over the limit: %v", err)
	}
	if err := read(httptest.NewRequest(http.MethodPost, "/", http.NoBody), &a); err != nil {
		t.Errorf("no body: %v", err)
	}
}

func TestAnEventIDIsANumber(t *testing.T) {
	for text, want := range map[string]uint64{"": 0, "0": 0, "17": 17,
		"9223372036854775807": 1<<63 - 1} {
		if got, err := eventID(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"-1", "x", "1.5", "9223372036854775808", " 1"} {
		if _, err := eventID(text); !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A change may be larger than the largest record, because JSON escapes its text. A larger event
// ends the watch with the reason; it does not reconnect for ever.
func TestAWatchReadsLargeEvents(t *testing.T) {
	text := func(n int) string {
		return string(change(pando.Change{Revision: 7, Kind: pando.KindService, Key: "/pando/service/a/b",
			Value: strings.Repeat("x", n)}, pando.ServiceKey{}))
	}
	last, got := "0", 0
	if err := listen(strings.NewReader(text(6<<20)), &last, func(Event) { got++ }); err != nil ||
		got != 1 || last != "7" {
		t.Errorf("%d events, the last %s: %v", got, last, err)
	}
	err := listen(strings.NewReader(text(eventBytesMax)), &last, func(Event) {})
	if !errors.Is(err, pando.ErrTooLarge) {
		t.Errorf("an event above the bound: %v", err)
	}
}
