package process

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
)

// withSecrets starts an instance that prints a line for each SIGHUP.
func withSecrets(
	t *testing.T, d *Driver, id string, change func(*pando.Spec), secrets map[string][]byte,
) pando.Sandbox {
	t.Helper()
	spec := pando.Spec{Name: "web", WorkingDir: "/", StopSeconds: 0.3, Command: []string{"/bin/sh",
		"-c", "trap 'echo $(cat /run/secrets/key)' HUP; echo ready; while :; do sleep 0.05; done"}}
	change(&spec)
	spec = spec.WithDefaults()
	b, err := d.Start(t.Context(), pando.SandboxSpec{
		Instance: pando.Instance{ID: pando.InstanceID(id), Service: spec.Key()},
		Spec:     spec, VIP4: vip, Secrets: secrets,
	})
	if err != nil {
		t.Fatal(err)
	}
	awaitLast(t, b, "ready")
	return b
}

func awaitLast(t *testing.T, b pando.Sandbox, want string) {
	t.Helper()
	for range 2000 {
		if got := b.LastLines(1); len(got) == 1 && got[0] == want {
			return
		}
		inside(t, b, "sleep 0.01")
	}
	t.Fatalf("its last line is %q, want %q", b.LastLines(1), want)
}

// A running program finds the new content of a secret in its file, and gets the signal of that
// secret once. A secret without a change gets none. The program alone reads the files.
func TestSecretsAreRenewed(t *testing.T) {
	for name, c := range map[string]struct {
		driver func(*testing.T, int) *Driver
		change func(*pando.Spec)
	}{
		"of the host": {newDriver, func(*pando.Spec) {}},
		"read-only":   {newDriver, func(s *pando.Spec) { s.ReadOnly = true }},
		"of an image": {newImageDriver, withImage},
	} {
		t.Run(name, func(t *testing.T) {
			d := c.driver(t, 1)
			secrets := map[string][]byte{"key": []byte("one"), "other": []byte("same")}
			b := withSecrets(t, d, "web-1", c.change, secrets)
			signals := map[string]string{"key": "SIGHUP", "other": "SIGKILL"}
			changed, err := b.Renew(t.Context(), secrets, signals)
			if err != nil || len(changed) > 0 {
				t.Fatalf("without a change: %v, %v", changed, err)
			}
			secrets["key"] = []byte(strings.Repeat("two", 20_000))
			changed, err = b.Renew(t.Context(), secrets, signals)
			if err != nil || !slices.Equal(changed, []string{"key"}) {
				t.Fatalf("with a change: %v, %v", changed, err)
			}
			secrets["key"] = []byte("three")
			if _, err := b.Renew(t.Context(), secrets, signals); err != nil {
				t.Fatal(err)
			}
			awaitLast(t, b, "three")
			got := inside(t, b, "(echo x >/run/secrets/key) 2>/dev/null ||"+
				" echo kept; cat /run/secrets/key /run/secrets/other; test -e /run/secrets/.new && echo left")
			if got != "kept\nthreesame" {
				t.Errorf("in the instance: %q", got)
			}
		})
	}
}

func TestAnInstanceWithoutSecretsGetsNone(t *testing.T) {
	b := run(t, newDriver(t, 0), nil, "sleep", "60")
	_, err := b.Renew(t.Context(), map[string][]byte{"key": []byte("x")}, nil)
	if err == nil || !strings.Contains(err.Error(), pando.ErrUnsupported.Error()) {
		t.Errorf("renewed: %v", err)
	}
	if errors.Is(err, pando.ErrUnavailable) {
		t.Error("it is tried again")
	}
}

// A secret that cannot be written keeps no signal from the program for one that was. The next attempt
// writes the other one.
func TestASecretThatFailsHidesNoOther(t *testing.T) {
	d := newDriver(t, 1)
	secrets := map[string][]byte{"key": []byte("one"), "rest": []byte("same")}
	b := withSecrets(t, d, "web-1", func(*pando.Spec) {}, secrets)
	secrets["key"], secrets["no/folder"] = []byte("two"), []byte("x")
	changed, err := b.Renew(t.Context(), secrets, map[string]string{"key": "SIGHUP"})
	if err == nil {
		t.Fatalf("a file in no folder was written: %v", changed)
	}
	awaitLast(t, b, "two") // the program was signalled
	delete(secrets, "no/folder")
	secrets["rest"] = []byte("new")
	changed, err = b.Renew(t.Context(), secrets, nil)
	if err != nil || !slices.Equal(changed, []string{"rest"}) {
		t.Errorf("the next attempt: %v, %v", changed, err)
	}
}
