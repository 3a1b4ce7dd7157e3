package vm

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// wire is an emulator with all its answers.
type wire struct {
	io.Reader
	sent strings.Builder
}

func (w *wire) Write(p []byte) (int, error) { return w.sent.Write(p) }

func TestThePowerButtonIsPressedOnce(t *testing.T) {
	const hello, ok, event = `{"QMP": {"version": {}}}` + "\n", `{"return": {}}` + "\n",
		`{"event": "POWERDOWN"}` + "\n"
	for answers, want := range map[string]string{
		hello + ok + ok:                          "",
		hello + event + ok + event + ok:          "",
		"":                                       "does not greet",
		"{}":                                     "does not greet",
		"SSH-2.0":                                "does not greet",
		hello + ok:                               "does not answer system_powerdown",
		hello + `{"error": {"desc": "no such"}}`: "refuses qmp_capabilities: no such",
		hello + strings.Repeat(event, 2*answersMax/len(ok)): "does not answer qmp_capabilities",
	} {
		w := &wire{Reader: strings.NewReader(answers)}
		err := press(w)
		if want == "" && err == nil && strings.Count(w.sent.String(), "system_powerdown") == 1 {
			continue
		}
		if want == "" || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", answers, err, want)
		}
	}
}

// The emulator of this machine answers, and has the button.
func TestTheEmulatorKnowsTheButton(t *testing.T) {
	if _, err := exec.LookPath(Program); err != nil {
		t.Skip("needs " + Program)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	name := fmt.Sprintf("pando-test-%d", time.Now().UnixNano())
	words := append([]string{"-machine", "q35", "-nodefaults", "-display", "none"}, controls(name)...)
	cmd := exec.CommandContext(ctx, Program, words...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait() //nolint:errcheck // it was killed
	defer cmd.Process.Kill()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		err := powerOff(ctx, name)
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}
