package span

import (
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
)

func TestLengthsAreRead(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"1d": day, "1d12h": 36 * time.Hour, "90d": 90 * day, "1.5d": 36 * time.Hour, "0": 0, "0s": 0,
		"500ms": 500 * time.Millisecond, "1m30s": 90 * time.Second, "-60s": -time.Minute,
		"-1d6h": -30 * time.Hour, "12h1d": 36 * time.Hour, "3us": 3 * time.Microsecond,
		"+2s": 2 * time.Second, "106751d": 106751 * day,
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "1", "d", "1 d", "1day", "1w", "1D", "day", "1d-1h", "--1d", "1e3s",
		"106752d", "9999999999999d", "99999999999h", "1d1", "-", ".5s", "infd", "0x1d"} {
		if got, err := Parse(text); !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
}

func TestLengthsArePrinted(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", day: "1d", 90 * day: "90d", 36 * time.Hour: "1d12h", 25*time.Hour + time.Second: "1d1h0m1s",
		day + time.Minute: "1d1m", day + time.Second: "1d1s", day + time.Millisecond: "1d1ms",
		2 * time.Minute: "2m", 2 * time.Hour: "2h", 90 * time.Second: "1m30s", 1500 * time.Millisecond: "1.5s",
		10 * time.Minute: "10m", 100 * time.Minute: "1h40m", -36 * time.Hour: "-1d12h",
		20*time.Hour + 10*time.Second: "20h0m10s",
	} {
		if got := Text(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

// What is printed is read as it was.
func TestAPrintedLengthIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(-math.MaxInt64/2, math.MaxInt64/2).Draw(t, "d"))
		if unit := rapid.SampledFrom([]time.Duration{1, time.Second, time.Minute, time.Hour,
			day}).Draw(t, "unit"); unit > 1 {
			d = d / unit * unit
		}
		if got, err := Parse(Text(d)); err != nil || got != d {
			t.Fatalf("%d is printed %s and read %d, %v", d, Text(d), got, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"1d12h", "-1d", "1.5d", "µs"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := Parse(text)
		if again, err2 := Parse(Text(d)); err == nil && (err2 != nil || again != d) {
			t.Errorf("%q is %v, printed %s: %v, %v", text, d, Text(d), again, err2)
		}
	})
}

func TestAFlagIsALength(t *testing.T) {
	v := Value(time.Minute)
	if v.String() != "1m" || v.Type() != "duration" {
		t.Errorf("%s of type %s", v.String(), v.Type())
	}
	if err := v.Set("1d"); err != nil || time.Duration(v) != day {
		t.Errorf("%v, %v", time.Duration(v), err)
	}
	if err := v.Set("soon"); err == nil {
		t.Error("soon is a length")
	}
}
