package pando

import "testing"

// Every form of a signal that images and Compose files use has a number and one name.
func TestSignalsHaveManyForms(t *testing.T) {
	for _, c := range []struct {
		text, name string
		number     int
	}{
		{"SIGTERM", "SIGTERM", 15}, {"TERM", "SIGTERM", 15}, {"term", "SIGTERM", 15},
		{"SigQuit", "SIGQUIT", 3}, {"15", "SIGTERM", 15}, {"SIGRTMIN+3", "SIGRTMIN+3", 37},
		{"37", "SIGRTMIN+3", 37}, {"RTMAX-1", "SIGRTMIN+29", 63}, {"rtmin", "SIGRTMIN", 34},
		{"SIGRTMAX", "SIGRTMIN+30", 64}, {"SIGIOT", "SIGABRT", 6}, {"64", "SIGRTMIN+30", 64},
		{"winch", "SIGWINCH", 28}, {"SIGPWR", "SIGPWR", 30},
	} {
		name, err := SignalName(c.text)
		if got := SignalNumber(c.text); err != nil || got != c.number || name != c.name {
			t.Errorf("%s is %d, %s (%v), want %d, %s", c.text, got, name, err, c.number, c.name)
		}
	}
	for _, text := range []string{"", "0", "32", "33", "65", "255", "256", "-1", "SIG", "SIGFOO",
		"SIGRTMIN+31", "RTMIN-1", "RTMAX+1", "RTMIN+", "SIGSIGTERM", " TERM"} {
		if n := SignalNumber(text); n != 0 {
			t.Errorf("%q is signal %d", text, n)
		}
		if _, err := SignalName(text); err == nil {
			t.Errorf("%q has a name", text)
		}
	}
}
