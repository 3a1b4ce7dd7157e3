package operator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/kernel"
)

// evil are texts that command a terminal, forge a line, or are no text.
var evil = []string{
	"", "plain", "\x1b]0;owned\x07", "\x1b[2J", "a\nweb  serving", "tab\there", "\r", "\u202eback",
	"\xff\xfe", "\u009b31m", "a\x00b", strings.Repeat("long ", 40),
}

// fill sets every field below a value at random, with evil texts.
func fill(dice *rand.Rand, v reflect.Value) {
	switch v.Addr().Interface().(type) {
	case *time.Time:
		if dice.IntN(3) > 0 {
			v.Set(reflect.ValueOf(time.Unix(dice.Int64N(4e9), dice.Int64N(1e9))))
		}
		return
	case *netip.Addr:
		if dice.IntN(3) > 0 {
			v.Set(reflect.ValueOf(netip.AddrFrom4([4]byte{10, byte(dice.IntN(256)), 3, 4})))
		}
		return
	case *json.RawMessage, *pando.ObjectID:
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(evil[dice.IntN(len(evil))])
	case reflect.Int, reflect.Int64:
		v.SetInt(dice.Int64N(1<<50) - 1<<40)
	case reflect.Uint64, reflect.Uint32, reflect.Uint16, reflect.Uint8:
		v.SetUint(uint64(dice.IntN(200)))
	case reflect.Float64:
		v.SetFloat((dice.Float64() - 0.5) * []float64{1, 1e-9, 1e20, 1e300}[dice.IntN(4)])
	case reflect.Bool:
		v.SetBool(dice.IntN(2) == 0)
	case reflect.Pointer:
		if dice.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(dice, v.Elem())
		}
	case reflect.Struct:
		for n := range v.NumField() {
			if v.Type().Field(n).IsExported() {
				fill(dice, v.Field(n))
			}
		}
	case reflect.Slice:
		for range dice.IntN(3) {
			one := reflect.New(v.Type().Elem()).Elem()
			fill(dice, one)
			v.Set(reflect.Append(v, one))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range dice.IntN(3) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(dice, key)
			fill(dice, value)
			v.SetMapIndex(key, value)
		}
	}
}

func random[T any](dice *rand.Rand) (v T) {
	fill(dice, reflect.ValueOf(&v).Elem())
	return v
}

// pages are all pages that show an answer of the cluster.
var pages = map[string]func(dice *rand.Rand, w io.Writer){
	"services": func(d *rand.Rand, w io.Writer) { services(w, random[[]pando.ServiceStatus](d)) },
	"one line": func(d *rand.Rand, w io.Writer) { oneLine(w, random[pando.ServiceStatus](d)) },
	"instances": func(d *rand.Rand, w io.Writer) {
		instances(w, random[[]pando.ServiceStatus](d), noon)
	},
	"service": func(d *rand.Rand, w io.Writer) { whole(w, random[pando.ServiceStatus](d), noon) },
	"hosts":   func(d *rand.Rand, w io.Writer) { hosts(w, random[[]pando.HostStatus](d), noon) },
	"commits": func(d *rand.Rand, w io.Writer) { commits(w, random[[]pando.StateCommit](d)) },
	"intent": func(d *rand.Rand, w io.Writer) {
		i := random[pando.Intent](d)
		because(w, pando.Because{Intent: &i})
	},
	"decision": func(d *rand.Rand, w io.Writer) {
		v := random[pando.Decision](d)
		because(w, pando.Because{Decision: &v})
	},
	"history": func(d *rand.Rand, w io.Writer) { history(w, versions(random[[]pando.Revision](d))) },
	"diff": func(d *rand.Rand, w io.Writer) {
		c := random[comparison](d)
		c.Service = pando.DefaultService("web")
		c.print(w)
	},
	"stats": func(d *rand.Rand, w io.Writer) {
		stats(w, rates(random[[]pando.InstanceUsage](d), random[[]pando.InstanceUsage](d)), noon)
	},
	"images":   func(d *rand.Rand, w io.Writer) { images(w, random[[]pando.ImageStatus](d)) },
	"image":    func(d *rand.Rand, w io.Writer) { imageOf(w, random[pando.ImageStatus](d)) },
	"findings": func(d *rand.Rand, w io.Writer) { findings(w, random[[]kernel.Finding](d)) },
}

// An instance, a member and a registry choose texts that operators read. No page lets such a text
// command the terminal, add a line of its own at the left, or end the command.
func TestNoAnswerCommandsTheTerminal(t *testing.T) {
	for name, page := range pages {
		for seed := range uint64(300) {
			var out bytes.Buffer
			page(rand.New(rand.NewPCG(seed, 11)), &out)
			checkHarmless(t, fmt.Sprint(name, ", seed ", seed), out.String())
			if t.Failed() {
				break
			}
		}
	}
}

func checkHarmless(t *testing.T, about, text string) {
	t.Helper()
	bad := func(r rune) bool { return r != '\n' && !unicode.IsGraphic(r) }
	if at := strings.IndexFunc(text, bad); at >= 0 || !utf8.ValidString(text) {
		t.Errorf("%s: the page commands the terminal, at byte %d: %q", about, at, text)
	}
	if strings.Contains(text, "\nweb  serving") {
		t.Errorf("%s: the page has a forged line: %q", about, text)
	}
}

// The same holds for the lines of `pando watch`, with any value of a record.
func TestNoEventCommandsTheTerminal(t *testing.T) {
	kinds := map[pando.Kind]func(*rand.Rand) any{
		pando.KindService:  func(d *rand.Rand) any { return random[pando.Service](d) },
		pando.KindRevision: func(d *rand.Rand) any { return random[pando.Revision](d) },
		pando.KindInstance: func(d *rand.Rand) any { return random[pando.Instance](d) },
		pando.KindIntent:   func(d *rand.Rand) any { return random[pando.Intent](d) },
		pando.KindDecision: func(d *rand.Rand) any { return random[pando.Decision](d) },
		pando.KindHost:     func(d *rand.Rand) any { return random[pando.Host](d) },
		pando.KindHead:     func(*rand.Rand) any { return "no object" },
		pando.KindBookmark: func(*rand.Rand) any { return nil },
		"\x1b[2J":          func(*rand.Rand) any { return 5 },
	}
	for kind, value := range kinds {
		for seed := range uint64(100) {
			dice := rand.New(rand.NewPCG(seed, 12))
			text, err := json.Marshal(value(dice))
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			o := Open(&cli.Output{Env: cli.Env{Stdout: &out, Getenv: os.Getenv}})
			e := api.Event{Kind: kind, Key: pando.Key(evil[dice.IntN(len(evil))]), Value: text,
				Deleted: dice.IntN(2) == 0}
			if err := printEvent(o, e); err != nil {
				t.Fatal(err)
			}
			checkHarmless(t, fmt.Sprint(kind, ", seed ", seed), out.String())
			if n := strings.Count(out.String(), "\n"); n != 1 {
				t.Errorf("%s, seed %d: an event has %d lines: %q", kind, seed, n, out.String())
			}
		}
	}
}

// The processors in use come from two readings. They are unknown, and never wrong, for an instance
// that is new, was missing, or was read twice at one time.
func TestRatesAreKnownForTwoReadingsOfOneInstanceOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) pando.InstanceUsage {
			u := pando.InstanceUsage{
				Instance:   pando.InstanceID(rapid.SampledFrom([]string{"a", "b"}).Draw(t, label)),
				At:         noon.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "at")) * time.Second),
				CPUSeconds: rapid.Float64Range(0, 100).Draw(t, "cpu"), PIDs: new(int64(1)),
			}
			if rapid.IntRange(0, 3).Draw(t, "missing") == 0 {
				u.Missing = "it is gone"
			}
			return u
		}
		old, now := draw("before"), draw("after")
		got := rates([]pando.InstanceUsage{old}, []pando.InstanceUsage{now})
		known := old.Instance == now.Instance && old.Missing == "" && now.Missing == "" &&
			now.At.After(old.At)
		if len(got) != 1 || (got[0].CPUs != nil) != known {
			t.Fatalf("%+v after %+v: the rate is known: %v, want %v", now, old, !known, known)
		}
		if !known {
			return
		}
		want := (now.CPUSeconds - old.CPUSeconds) / now.At.Sub(old.At).Seconds()
		if *got[0].CPUs != max(0, want) { // a counter that began again has no rate below zero
			t.Fatalf("%+v after %+v: %g processors, want %g", now, old, *got[0].CPUs, want)
		}
	})
}

// A row without a time of birth has no age of three centuries.
func TestAnUnknownBirthHasNoAge(t *testing.T) {
	var out bytes.Buffer
	all := []pando.InstanceUsage{{Instance: "web-1", Host: "h1", Missing: "its host is away"}}
	stats(&out, rates(nil, all), noon)
	if strings.Contains(out.String(), "d  its host") || !strings.Contains(out.String(), "-") {
		t.Errorf("got\n%s", out.String())
	}
}

// Sizes have at most four characters and their unit, and grow with the number.
func TestSizesKeepTheirWidthAndOrder(t *testing.T) {
	value := func(text string) float64 {
		var v float64
		var unit string
		if _, err := fmt.Sscanf(text, "%g%1s", &v, &unit); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		for range strings.Index("BKMGT", unit) {
			v *= 1024
		}
		return v
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, 999<<40).Draw(t, "bytes")
		if rapid.Bool().Draw(t, "small") {
			n >>= rapid.IntRange(0, 49).Draw(t, "shift")
		}
		text := size(n)
		if utf8.RuneCountInString(text) > 5 {
			t.Fatalf("%d bytes are %q", n, text)
		}
		if got := value(text); got < 0.94*float64(n) || got > 1.06*float64(n) {
			t.Fatalf("%d bytes are %q, which is %g", n, text, got)
		}
	})
}
