package process

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// A check decides about each config before the program starts, inside the instance and as its user.
// A refusal ends the start, and the program never runs.
func TestConfigsAreCheckedBeforeTheStart(t *testing.T) {
	for name, c := range map[string]struct {
		driver func(*testing.T, int) *Driver
		change func(*pando.Spec)
	}{
		"of the host": {newDriver, func(*pando.Spec) {}},
		"of an image": {newImageDriver, withImage},
	} {
		t.Run(name, func(t *testing.T) {
			d := c.driver(t, 2)
			start := func(id pando.InstanceID, text string) (pando.Sandbox, error) {
				t.Helper()
				spec := pando.Spec{Name: "web", WorkingDir: "/", Command: []string{"/bin/sh", "-c",
					"echo the program runs; while :; do sleep 1; done"}}
				c.change(&spec)
				spec = spec.WithDefaults()
				return d.Start(t.Context(), pando.SandboxSpec{
					Instance: pando.Instance{ID: id, Service: spec.Key()}, Spec: spec, VIP4: vip,
					Configs: []pando.ConfigFile{
						{Name: "plain", Content: []byte("x"), Mode: 0o444},
						{Name: "a.conf", Content: []byte(text), Mode: 0o444, Check: []string{"/bin/sh", "-c",
							"sleep 60 & echo checked $0; read word <$0; test $word = good || exit 7", "{}"}},
					},
				})
			}
			began := time.Now()
			b, err := start("web-1", "good\n")
			if err != nil {
				t.Fatal(err)
			}
			awaitLast(t, b, "the program runs")
			if got := inside(t, b, "ls /proc | grep -c '^[0-9]'"); len(got) != 1 {
				t.Errorf("%s processes: what the check left still runs", got)
			}
			_, err = start("web-2", "bad\n")
			var failed *pando.CheckFailed
			if !errors.Is(err, pando.ErrRefused) || !errors.As(err, &failed) {
				t.Fatalf("with a bad file: %v", err)
			}
			if failed.Config != "a.conf" || failed.Code != 7 ||
				failed.Command[3] != "/run/configs/a.conf" ||
				strings.TrimSpace(string(failed.Output)) != "checked /run/configs/a.conf" {
				t.Errorf("the refusal is %+v", failed)
			}
			logs, _ := filepath.Glob(filepath.Join(d.LogDir, "*", "*", "web-2", "*"))
			for _, file := range logs {
				if text, err := os.ReadFile(file); err != nil || len(text) > 0 {
					t.Errorf("the program ran: %s (%v)", text, err)
				}
			}
			if took := time.Since(began); took > pando.ConfigCheckMax {
				t.Errorf("the start waited %s for a process that the check left", took)
			}
		})
	}
}

// A check that hangs is ended after its time, and the start with it.
func TestACheckThatHangsEndsTheStart(t *testing.T) {
	spec := pando.Spec{Name: "web", WorkingDir: "/", Command: []string{"/bin/sleep", "60"}}.
		WithDefaults()
	_, err := newDriver(t, 0).Start(t.Context(), pando.SandboxSpec{
		Instance: pando.Instance{ID: "web-1", Service: spec.Key()}, Spec: spec, VIP4: vip,
		Configs: []pando.ConfigFile{{Name: "a", Mode: 0o444, Check: []string{"/bin/sleep", "60"}}},
	})
	if err == nil || !strings.Contains(err.Error(),
		"the config a is refused: its check /bin/sleep 60 did not end within 10s") {
		t.Errorf("with a check that hangs: %v", err)
	}
}
