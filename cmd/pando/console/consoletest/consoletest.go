// Package consoletest helps to test what commands print.
package consoletest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
)

// Squeeze returns a table with single spaces between its cells.
func Squeeze(text string) string {
	var out []string
	for line := range strings.Lines(text) {
		out = append(out, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(out, "\n")
}

// Evil are texts that command a terminal, forge a line, or are no text.
var Evil = []string{
	"", "plain", "\x1b]0;owned\x07", "\x1b[2J", "a\nweb  serving", "tab\there", "\r", "\u202eback",
	"\xff\xfe", "\u009b31m", "a\x00b", strings.Repeat("long ", 40),
}

// Fill sets every field below a value at random, with evil texts.
func Fill(dice *rand.Rand, v reflect.Value) {
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
		v.SetString(Evil[dice.IntN(len(Evil))])
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
			Fill(dice, v.Elem())
		}
	case reflect.Struct:
		for n := range v.NumField() {
			if v.Type().Field(n).IsExported() {
				Fill(dice, v.Field(n))
			}
		}
	case reflect.Slice:
		for range dice.IntN(3) {
			one := reflect.New(v.Type().Elem()).Elem()
			Fill(dice, one)
			v.Set(reflect.Append(v, one))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range dice.IntN(3) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			Fill(dice, key)
			Fill(dice, value)
			v.SetMapIndex(key, value)
		}
	}
}

// Random returns a value with evil texts.
func Random[T any](dice *rand.Rand) (v T) {
	Fill(dice, reflect.ValueOf(&v).Elem())
	return v
}

// CheckHarmless fails a test if a page commands the terminal or has a forged line.
func CheckHarmless(t *testing.T, about, text string) {
	t.Helper()
	bad := func(r rune) bool { return r != '\n' && !unicode.IsGraphic(r) }
	if at := strings.IndexFunc(text, bad); at >= 0 || !utf8.ValidString(text) {
		t.Errorf("%s: the page commands the terminal, at byte %d: %q", about, at, text)
	}
	if strings.Contains(text, "\nweb  serving") {
		t.Errorf("%s: the page has a forged line: %q", about, text)
	}
}

// Answering returns the environment of a console on a socket that gives the same answers always, and
// what the console prints.
func Answering(
	t *testing.T, answers map[string]any, forbidden ...string,
) (cli.Env, *strings.Builder) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "api.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for path, v := range answers {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(v)
		})
	}
	for _, path := range forbidden {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).Encode(map[string]string{"code": "forbidden", "detail": "no"})
		})
	}
	go http.Serve(l, mux) // until the socket is closed
	t.Cleanup(func() { l.Close() })
	out := &strings.Builder{}
	getenv := func(name string) string { return map[string]string{"PANDO_API": socket}[name] }
	return cli.Env{Stdout: out, Stderr: out, Getenv: getenv}, out
}

// Terminal opens a terminal with the given number of columns. It returns an environment on the
// terminal and a function that returns the displayed text.
func Terminal(t *testing.T, columns uint16, vars map[string]string) (cli.Env, func() string) {
	t.Helper()
	outer, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	t.Cleanup(func() { outer.Close() })
	if err := unix.IoctlSetPointerInt(int(outer.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(outer.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(inner.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	env := cli.Env{
		Stdout: inner, Stderr: inner, Getenv: func(name string) string { return vars[name] },
	}
	return env, func() string {
		inner.Close()
		var all []byte
		b := make([]byte, 4096)
		for {
			n, err := outer.Read(b) // Read fails with EIO after the inner end is closed
			all = append(all, b[:n]...)
			if err != nil {
				return strings.ReplaceAll(string(all), "\r\n", "\n")
			}
		}
	}
}

// Noon is a time for tests.
var Noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
