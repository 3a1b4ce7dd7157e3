package process

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
)

// A caller that may read the logs of one service reads those of no other.
func TestTheLogOfAnotherServiceIsNotFound(t *testing.T) {
	d := &Driver{Config: Config{LogDir: t.TempDir(), Clock: clock.Clock{}}}
	vault := pando.ServiceKey{Tenant: "bank", Name: "vault"}
	dir := d.logDir(vault, "vault-1")
	if err := errors.Join(os.MkdirAll(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "log"), []byte("a secret\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.OpenLog(t.Context(), vault, "vault-1", pando.LogQuery{Lines: 1}); err != nil {
		t.Fatal(err)
	}
	evil := pando.ServiceKey{Tenant: "acme", Name: "evil"}
	for _, i := range []pando.InstanceID{"vault-1", "../../bank/vault/vault-1", "..", "", ".",
		"vault-1/", "../vault-1"} {
		for _, s := range []pando.ServiceKey{evil, {}} {
			lines, err := d.OpenLog(t.Context(), s, i, pando.LogQuery{Lines: 1})
			if !errors.Is(err, pando.ErrNotFound) {
				t.Errorf("%s reads the log of %q: %v, %v", s, i, lines, err)
			}
		}
	}
}

func TestAMissingLogOrABadSearchIsSaid(t *testing.T) {
	d := &Driver{Config: Config{LogDir: t.TempDir(), Clock: clock.Clock{}}}
	web := pando.DefaultService("web")
	_, err := d.OpenLog(t.Context(), web, "web-1", pando.LogQuery{})
	if !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("a missing log: %v", err)
	}
	_, err = d.OpenLog(t.Context(), web, "web-1", pando.LogQuery{Match: "("})
	if !errors.Is(err, pando.ErrInvalid) {
		t.Errorf("a bad expression: %v", err)
	}
}
