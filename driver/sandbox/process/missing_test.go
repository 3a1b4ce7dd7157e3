package process

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/view"
	"pando.run/pando/driver/sandbox/process/wire"
)

// An instance whose program needs a file that it does not see fails with the name of that file, and
// not with that of the program.
func TestTheMissingInterpreterIsNamed(t *testing.T) {
	dir := folder(t, "/srv")
	elf, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	loader := strings.Index(string(elf), "/lib64/ld-linux-x86-64.so.2")
	if loader < 0 {
		t.Skip("/bin/true has another loader")
	}
	copy(elf[loader:], "/nix/ld")
	copy(elf[loader+len("/nix/ld"):], make([]byte, 20))
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{
		"crlf": "#!/bin/sh\r\nexit 0\r\n", "venv": "#!" + at("python") + "\n", "none": "#!/opt/no/such -x\n",
		"relative": "#!python\n", "chain": "#!" + at("none") + "\n", "foreign": string(elf),
	} {
		if err := os.WriteFile(at(name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("python3", at("python")),
		os.Symlink("/opt/pyenv/versions/3/bin/python3", at("python3"))); err != nil {
		t.Fatal(err)
	}
	d := newDriver(t, 0)
	for name, want := range map[string][]string{
		"crlf":     {"crlf end with a carriage return", `sed -i 's/\r$//'`},
		"venv":     {at("venv") + " names " + at("python"), "folders: [/opt/pyenv/versions/3]"},
		"python":   {"python is a link to /opt/pyenv/versions/3/bin/python3", "folders: [/opt/pyenv"},
		"none":     {"names /opt/no/such", "folders: [/opt/no]"},
		"relative": {`the interpreter "python"`, "whole path"},
		"chain":    {"names " + at("none"), at("none") + " names /opt/no/such"},
		"foreign":  {"needs the interpreter /nix/ld", "folders: [/nix]"},
	} {
		spec := pando.Spec{Name: "web", Command: []string{at(name)}, WorkingDir: dir}
		_, err := d.Start(t.Context(), pando.SandboxSpec{Instance: pando.Instance{ID: "web-1",
			Service: spec.Key()}, Spec: spec})
		for _, part := range want {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, want %q", name, err, part)
			}
		}
		if err != nil && strings.Contains(err.Error(), "there is no program") {
			t.Errorf("%s: %v", name, err)
		}
	}
	hidden := folder(t, "/home")
	if err := os.WriteFile(filepath.Join(hidden, "app"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	spec := pando.Spec{Name: "web", Command: []string{hidden + "/app"}, WorkingDir: dir}
	_, err = d.Start(t.Context(), pando.SandboxSpec{Instance: pando.Instance{ID: "web-1",
		Service: spec.Key()}, Spec: spec})
	if err == nil || !strings.Contains(err.Error(), "this host has "+hidden+"/app") ||
		!strings.Contains(err.Error(), "folders: ["+hidden+"]") {
		t.Errorf("a program in /home: %v", err)
	}
	p := wire.Program{Layers: []string{"layer"}}
	if err := view.WhyAbsent(p, at("none")); err == nil || !strings.Contains(err.Error(), "into the image") {
		t.Errorf("in an image: %v", err)
	}
	if err := view.WhyAbsent(wire.Program{}, "/bin/true"); err != nil {
		t.Errorf("a whole program: %v", err)
	}
}
