package process

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"pando.run/pando"
)

// withConfigs starts an instance with a config that prints it for each SIGHUP.
func withConfigs(t *testing.T, d *Driver, target string, change func(*pando.Spec)) pando.Sandbox {
	t.Helper()
	spec := pando.Spec{Name: "web", WorkingDir: "/", StopSeconds: 0.3, Command: []string{"/bin/sh",
		"-c", "trap 'echo $(cat /run/configs/a.conf)' HUP; echo ready; while :; do sleep 0.05; done"},
		Configs: []pando.Config{{Name: "a.conf", Text: "one"}}}
	change(&spec)
	spec = spec.WithDefaults()
	b, err := d.Start(t.Context(), pando.SandboxSpec{
		Instance: pando.Instance{ID: "web-1", Service: spec.Key()}, Spec: spec, VIP4: vip,
		Configs: []pando.ConfigFile{
			{Name: "a.conf", Content: []byte("one"), Mode: 0o444, Target: target},
			{Name: "b.conf", Content: []byte("hush"), Mode: 0o400},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	awaitLast(t, b, "ready")
	return b
}

func configChange(content string, check ...string) pando.ConfigChange {
	return pando.ConfigChange{OnChange: "SIGHUP",
		ConfigFile: pando.ConfigFile{Name: "a.conf", Content: []byte(content), Mode: 0o444,
			Check: check}}
}

// A running program finds a new content at both paths of a config and gets its signal, but only
// after the check has seen the new file. A content without a change starts no check.
func TestConfigsAreReplacedAfterTheirCheck(t *testing.T) {
	for name, c := range map[string]struct {
		driver func(*testing.T, int) *Driver
		change func(*pando.Spec)
	}{
		"of the host": {newDriver, func(*pando.Spec) {}},
		"read-only":   {newDriver, func(s *pando.Spec) { s.ReadOnly = true }},
		"of an image": {newImageDriver, withImage},
	} {
		t.Run(name, func(t *testing.T) {
			b := withConfigs(t, c.driver(t, 1), "/etc/shop/a.conf", c.change)
			if got := inside(t, b, "cat /etc/shop/a.conf /run/configs/b.conf"); got != "onehush" {
				t.Fatalf("at its start: %q", got)
			}
			changed, err := b.Reconfigure(t.Context(), configChange("one", "/bin/false", "{}"))
			if changed || err != nil {
				t.Fatalf("without a change: %v, %v", changed, err)
			}
			check := []string{"/bin/sh", "-c", "read word <$0; test $word = two || exit 7", "{}"}
			changed, err = b.Reconfigure(t.Context(), configChange("bad\n", check...))
			var failed *pando.CheckFailed
			if changed || !errors.Is(err, pando.ErrRefused) || !errors.As(err, &failed) ||
				failed.Code != 7 || failed.Command[3] != "/run/configs/.next/a.conf" {
				t.Fatalf("with a bad content: %v, %v", changed, err)
			}
			got := inside(t, b, "cat /etc/shop/a.conf /run/configs/.next/a.conf")
			if got != "onebad" {
				t.Fatalf("after a bad content: %q", got)
			}
			changed, err = b.Reconfigure(t.Context(), configChange("two\n", check...))
			if !changed || err != nil {
				t.Fatalf("with a good content: %v, %v", changed, err)
			}
			awaitLast(t, b, "two")
			got = inside(t, b, "cat /etc/shop/a.conf; (echo x >/run/configs/a.conf) 2>/dev/null || "+
				"echo kept; ls -A /run/configs/.next")
			if got != "two\nkept" {
				t.Errorf("in the instance: %q", got)
			}
		})
	}
}

// A check ends with its time.
func TestACheckThatHangsIsEnded(t *testing.T) {
	b := withConfigs(t, newDriver(t, 1), "", func(*pando.Spec) {})
	ctx, cancel := context.WithTimeout(t.Context(), 200e6)
	defer cancel()
	changed, err := b.Reconfigure(ctx, configChange("two", "/bin/sh", "-c", "sleep 60", "{}"))
	if changed || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a check that hangs: %v, %v", changed, err)
	}
	if got := inside(t, b, "cat /run/configs/a.conf"); got != "one" {
		t.Errorf("in the instance: %q", got)
	}
}

// A target in a folder that outlives the instance is refused, because a link would stay there.
func TestATargetOutsideTheInstanceIsRefused(t *testing.T) {
	dir := t.TempDir()
	spec := pando.Spec{Name: "web", WorkingDir: dir, Command: []string{"/bin/sleep", "60"},
		Configs: []pando.Config{{Name: "a", Text: "x"}}}.WithDefaults()
	_, err := newDriver(t, 0).Start(t.Context(), pando.SandboxSpec{
		Instance: pando.Instance{ID: "web-1", Service: spec.Key()}, Spec: spec, VIP4: vip,
		Configs: []pando.ConfigFile{{Name: "a", Content: []byte("x"), Mode: 0o444,
			Target: dir + "/a"}},
	})
	if err == nil || !strings.Contains(err.Error(), "leave `target` out, and read /run/configs/a") {
		t.Errorf("a target in the folder of the program: %v", err)
	}
}

// Names of the spec are in /etc/hosts of the instance alone, before those of the host.
func TestExtraHostsAreInTheHostsFile(t *testing.T) {
	for name, c := range map[string]struct {
		driver func(*testing.T, int) *Driver
		change func(*pando.Spec)
	}{"of the host": {newDriver, func(*pando.Spec) {}}, "of an image": {newImageDriver, withImage}} {
		t.Run(name, func(t *testing.T) {
			before, err := os.ReadFile("/etc/hosts")
			if err != nil {
				t.Fatal(err)
			}
			b := withConfigs(t, c.driver(t, 1), "", func(s *pando.Spec) {
				s.ExtraHosts = map[string]string{"printer.lan": "192.0.2.9", "a.lan": "2001:db8::1"}
				c.change(s)
			})
			got := inside(t, b, "cat /etc/hosts")
			if !strings.HasPrefix(got, "127.0.0.1 localhost\n") ||
				!strings.Contains(got, " web-1\n2001:db8::1 a.lan\n192.0.2.9 printer.lan") {
				t.Errorf("its hosts are %q", got)
			}
			if after, err := os.ReadFile("/etc/hosts"); err != nil || string(after) != string(before) {
				t.Error("the hosts of the host have changed")
			}
		})
	}
}

func TestAnInstanceWithoutConfigsGetsNone(t *testing.T) {
	b := run(t, newDriver(t, 0), nil, "sleep", "60")
	_, err := b.Reconfigure(t.Context(), configChange("two"))
	if err == nil || !strings.Contains(err.Error(), "began without configs") {
		t.Errorf("configured: %v", err)
	}
}
