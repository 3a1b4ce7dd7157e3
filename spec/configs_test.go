package spec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
)

// folderWith returns a folder with files.
func folderWith(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const edge = `name: edge
command: [x]
secrets: [key]
configs:
  plain.conf: ./plain.conf
  big.conf:
    file: big.conf
    template: true
    target: /etc/edge/big.conf
    mode: "0640"
    check: x -t {}
    on_change: HUP
  inline: {content: "a\n  b\n"}
`

func TestConfigsAreRead(t *testing.T) {
	dir := folderWith(t, map[string]string{"plain.conf": "{{not a template\n",
		"big.conf": "{{secret \"key\"}}\n{{range endpoints \"api\"}}{{.IP}}{{end}}\n"})
	specs, err := Parse("f.yaml", []byte(edge), dir)
	if err != nil {
		t.Fatal(err)
	}
	all := specs[0].Configs
	if len(all) != 3 || all[0].Name != "big.conf" || all[1].Text != "a\n  b\n" ||
		all[2].Text != "{{not a template\n" || all[2].Template {
		t.Fatalf("the configs are %+v", all)
	}
	big := all[0]
	if !big.Template || big.Target != "/etc/edge/big.conf" || big.Mode != 0o640 ||
		strings.Join(big.Check, " ") != "x -t {}" || big.OnChange != "SIGHUP" {
		t.Errorf("the config is %+v", big)
	}
	again, err := Parse("f.yaml", Format(specs[0]), "/elsewhere")
	if err != nil || Changed(specs[0], again[0]) != nil && len(Changed(specs[0], again[0])) > 1 {
		t.Errorf("%s\nis read as %+v (%v)", Format(specs[0]), again, err)
	}
	got := again[0].Configs
	if len(got) != 3 || got[0].Text != big.Text || got[0].Mode != big.Mode ||
		got[1].Text != all[1].Text || got[2].Text != all[2].Text {
		t.Errorf("%s\nis read as %+v", Format(specs[0]), got)
	}
}

// Every text that a config may have comes back from its printed form.
func TestEveryContentIsPrintedAsItIs(t *testing.T) {
	for _, text := range []string{"a", "a\n", "\n", "a\n\n", " a\n", "a \n", "a\tb\n",
		"\ta\n", "a: b\n",
		"# a\n", "- a\n", "a\r\nb\n", "{{range .Ports}}\n  x\n{{end}}\n", "ä€\n",
		"a\n\nb\n", "'\"\\\n",
		"---\n", "...\n", "%a\n", "a\n  b\n c\n", "\u2028x\n", "|\n", "a #b\n"} {
		s := pando.Spec{Name: "a", Command: []string{"x"}, WorkingDir: "/",
			Configs: []pando.Config{{Name: "c", Text: text}}}
		again, err := Parse("f.yaml", Format(s), "/")
		if err != nil || len(again[0].Configs) != 1 || again[0].Configs[0].Text != text {
			t.Errorf("%q is printed as\n%s, which is %+v (%v)", text, Format(s), again, err)
		}
	}
}

func TestImpossibleConfigsAreRefused(t *testing.T) {
	dir := folderWith(t, map[string]string{"bad.conf": "a\n{{range}}\n", "binary": "a\x00b",
		"large": strings.Repeat("x", pando.ConfigBytesMax+1), "empty": ""})
	for _, c := range [][2]string{
		{"configs: {a: ./gone}", "f.yaml:3:14: configs.a: read the file: "},
		{"configs: {a: ./bad.conf}", ""},
		{"configs: {a: {file: bad.conf, template: true}}", "configs.a: the template of a: line 2: "},
		{"configs: {a: {file: bad.conf, content: x}}", "drop one of them"},
		{"configs: {a: {}}", "f.yaml:3:1"},
		{"configs: {a: ./binary}", "is no UTF-8 text"},
		{"configs: {a: ./large}", "more than 128 KiB"},
		{"configs: {a: ./empty}", "needs a file or a content"},
		{"configs: {a: .}", "is no file"},
		{"configs: {a: {content: x, chek: y}}", "did you mean `check`?"},
		{"configs: {../a: {content: x}}", "want a name of letters"},
		{"configs: {.next: {content: x}}", "want a name of letters"},
		{"configs: {a: {content: x, check: [y]}}", "names no {}"},
		{"configs: {a: {content: x, target: b}}", "is no absolute path"},
		{"configs: {a: {content: x, target: /run/secrets/b}}", "the instance's own"},
		{"volumes: [\"v:/d\"]\nconfigs: {a: {content: x, target: /d/b}}", "lies in volume v"},
		{"configs: {a: {content: x, target: /t/b}}\ntmpfs: [/t]", "lies in tmpfs /t"},
		{"configs:\n  a: {content: x, target: /b}\n  c: {content: x, target: /b}",
			"has a config already"},
		{`configs: {a: {content: '{{secret "k"}}', template: true}}`, "add it to `secrets`"},
		{`configs: {a: {content: '{{.Nope}}', template: true}}`, "can't evaluate field Nope"},
		{`configs: {a: {content: '{{range 9}}{{end}}', template: true}}`, "range takes endpoints"},
		{"configs: {a: {content: x, mode: \"999\"}}", "permissions such as 0444"},
		{"extra_hosts: {a: b}", "want an address such as 192.0.2.9"},
		{"extra_hosts: [\"a b=192.0.2.9\"]", "is no name of a host"},
	} {
		words, want := c[0], c[1]
		_, err := Parse("f.yaml", []byte("name: a\ncommand: [x]\n"+words+"\n"), dir)
		if want == "" && err == nil {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", words, err, want)
		}
	}
}

func TestEnvFilesComeBehindTheEnvironment(t *testing.T) {
	dir := folderWith(t, map[string]string{"a.env": "A=1\nB=1\nC='1 # 1'\n# x\n", "b.env": "B=2\n",
		"bad.env": "A B C\n"})
	for words, want := range map[string]string{
		"env_file: a.env\nenvironment: {A: \"9\"}":     "9 1 1 # 1",
		"environment: {A: \"9\"}\nenv_file: a.env":     "9 1 1 # 1",
		"env_file: [a.env, b.env]":                     "1 2 1 # 1",
		"env_file: [b.env, a.env]\nenvironment: [D=4]": "1 1 1 # 1",
	} {
		specs, err := Parse("f.yaml", []byte("name: a\ncommand: [x]\n"+words+"\n"), dir)
		if err != nil {
			t.Errorf("%s: %v", words, err)
			continue
		}
		env := specs[0].Environment
		if got := env["A"] + " " + env["B"] + " " + env["C"]; got != want {
			t.Errorf("%s: %q, want %q", words, got, want)
		}
	}
	for words, want := range map[string]string{
		"env_file: gone.env":          "f.yaml:3:11: env_file: read the file: ",
		"env_file: [a.env, gone.env]": "f.yaml:3:19: env_file[1]: read the file: ",
		"env_file: {a: b}":            "want a file such as ./web.env",
		"env_file: bad.env":           "env_file: bad.env: ",
	} {
		_, err := Parse("f.yaml", []byte("name: a\ncommand: [x]\n"+words+"\n"), dir)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", words, err, want)
		}
	}
}
