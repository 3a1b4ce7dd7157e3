package compose

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/spec"
)

var update = flag.Bool("update", false, "write the golden files of the corpus")

// convert returns the text of a conversion: its specs and warnings, or its errors.
func convert(t *testing.T, path string, o Options) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !Is(data) {
		t.Fatalf("%s is no Compose file", path)
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Parse(context.Background(), "compose.yaml", data, dir, o)
	text := ""
	if err != nil {
		text = "# refused\n" + err.Error() + "\n"
	}
	for n, s := range r.Specs {
		if n > 0 {
			text += "---\n"
		}
		text += string(spec.Format(s))
	}
	if len(r.Warnings) > 0 {
		text += "# warnings\n" + r.Warnings.Error() + "\n"
	}
	return strings.ReplaceAll(text, dir, "/project")
}

func TestTheCorpusIsConvertedAsItsGoldenFilesSay(t *testing.T) {
	files, err := filepath.Glob("testdata/corpus/*/compose.yaml")
	if err != nil || len(files) < 15 {
		t.Fatalf("the corpus has %d files: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			golden := filepath.Join(filepath.Dir(file), "golden.txt")
			got := convert(t, file, Options{Environ: []string{"HOME=/root"}})
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(golden); err != nil || string(want) != got {
				t.Errorf("%s differs from the conversion (%v):\n%s", golden, err, got)
			}
		})
	}
}

// A converted file is a spec file: `pando deploy` takes the output of `pando convert`, and it means
// the same.
func TestAConvertedFileIsASpecFile(t *testing.T) {
	files, _ := filepath.Glob("testdata/corpus/*/compose.yaml")
	read := 0
	for _, file := range files {
		text := convert(t, file, Options{})
		if strings.HasPrefix(text, "# refused") {
			continue
		}
		read++
		text, _, _ = strings.Cut(text, "# warnings")
		specs, err := spec.Parse(file, []byte(text), "/project")
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		var again []string
		for _, s := range specs {
			again = append(again, string(spec.Format(s)))
		}
		if got := strings.Join(again, "---\n"); got != text {
			t.Errorf("%s: its spec file means\n%s\ninstead of\n%s", file, got, text)
		}
	}
	if read < 7 {
		t.Errorf("only %d files of the corpus become specs", read)
	}
}

func parse(t *testing.T, text string, o Options) (Result, error) {
	t.Helper()
	return Parse(context.Background(), "c.yaml", []byte(text), t.TempDir(), o)
}

func TestHostileFilesAreRefused(t *testing.T) {
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += string(c) + ": &" + string(c) + " ["
		bomb += strings.TrimSuffix(strings.Repeat("*"+string(c-1)+",", 9), ",") + "]\n"
	}
	for name, c := range map[string]struct{ text, want string }{
		"huge": {"services: {a: {image: x}}\n#" + strings.Repeat("x", 1<<20), "larger than 1 MiB"},
		"deep": {"services: " + strings.Repeat("[", 5000), "nested deeper"},
		"bomb": {"x-" + strings.ReplaceAll(bomb, "\n", "\nx-") +
			"z: 1\nservices: {a: {image: x, labels: {l: *j}}}\n", "c.yaml:"},
		"cycle": {"services:\n  a: {image: x, depends_on: [b]}\n  b: {image: x, depends_on: [a]}\n",
			"cycle"},
		"extends cycle": {"services:\n  a: {extends: b}\n  b: {extends: a}\n", "c.yaml:"},
		"self alias":    {"services: &s\n  a: *s\n", "c.yaml:"},
		"binary":        {"services:\n  a: {image: \"\x00\"}\n", "NUL"},
		"two":           {"services: {a: {image: x}}\n---\nservices: {}\n", "second document"},
		"unknown":       {"services:\n  a:\n    image: x\n    imagee: y\n", "imagee"},
		"a list":        {"services: [a, b]\n", "c.yaml:"},
		"empty":         {"services: {}\n", "no service"},
		"outside":       {"services:\n  a: {image: x, env_file: /etc/passwd}\n", "outside the folder"},
		"upwards":       {"services:\n  a: {image: x, env_file: ../x}\n", "outside the folder"},
		"absent":        {"services:\n  a: {image: x, env_file: x.env}\n", "does not exist"},
		"a device":      {"services:\n  a: {image: x, env_file: /dev/zero}\n", "outside the folder"},
		"a tenant":      {"name: \"1\"\nservices:\n  a: {image: x}\n", "--project"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := parse(t, c.text, Options{})
			if err == nil || len(r.Specs) > 0 || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want an error with %q", err, c.want)
			} else if !strings.HasPrefix(err.Error(), "c.yaml:") {
				t.Errorf("%v names no place", err)
			}
		})
	}
}

func TestALinkOutOfTheFolderIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/etc/hostname", filepath.Join(dir, "x.env")); err != nil {
		t.Fatal(err)
	}
	text := "services:\n  a: {image: x, env_file: x.env}\n"
	_, err := Parse(context.Background(), "c.yaml", []byte(text), dir, Options{})
	if err == nil || !strings.HasPrefix(err.Error(), "c.yaml:2:17: services.a.env_file: ") {
		t.Errorf("a link out of the folder: %v", err)
	}
}

func TestProjectAndProfilesAreChosen(t *testing.T) {
	const file = "testdata/corpus/profiles/compose.yaml"
	for _, c := range []struct {
		options Options
		want    string
		absent  string
	}{
		{Options{Project: "my_shop"}, "tenant: my-shop", "name: seed"},
		{Options{Profiles: []string{"tools"}}, "name: seed", "name: tracing"},
		{Options{Profiles: []string{"debug"}}, "services.tracing.privileged", "name: api"},
	} {
		got := convert(t, file, c.options)
		if !strings.Contains(got, c.want) || strings.Contains(got, c.absent) {
			t.Errorf("with %+v:\n%s\nwant %q and no %q", c.options, got, c.want, c.absent)
		}
	}
}

// Each service comes after those that it needs, in any order of the file.
func TestServicesComeAfterTheirNeeds(t *testing.T) {
	r, err := parse(t, `services:
  a: {image: x, depends_on: [z, m]}
  m: {image: x, depends_on: [z]}
  z: {image: x}
`, Options{Project: "p"})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[pando.ServiceName]bool{}
	for _, s := range r.Specs {
		for n := range s.Needs {
			if !seen[n] {
				t.Errorf("%s comes before %s, which it needs", s.Name, n)
			}
		}
		seen[s.Name] = true
	}
	if len(seen) != 3 {
		t.Errorf("there are %d services", len(seen))
	}
}

func TestASpecIsNoComposeFile(t *testing.T) {
	for text, want := range map[string]bool{
		"services: {}\n": true, "version: '3'\nservices:\n  a:\n": true, "include: [a]\n": true,
		"\"services\": {}\n": true, "name: a\ncommand: x\nlabels:\n  services: b\n": false,
		"name: services\ncommand: x\n": false, "": false,
		"{\n  \"name\": \"x\",\n  \"services\": {}\n}": true, "{\"name\": \"services\"}": false,
		"{services: {a: {image: b}}}": true, "{": false,
	} {
		if Is([]byte(text)) != want {
			t.Errorf("%q: a Compose file is %t", text, !want)
		}
	}
}

// A port of a program has its own number at the VIP, which other services use. The hosts' own
// addresses have the published one.
func TestAPortOfAProgramHasOneNumber(t *testing.T) {
	r, err := parse(t, `services:
  web: {image: x, ports: ["80:8080", "81:8080", "90:9090"], expose: [8080, 7000]}
  other: {image: x, environment: {URL: "http://web:8080/"}}
`, Options{Project: "p"})
	if err != nil {
		t.Fatal(err)
	}
	got := string(spec.Format(r.Specs[1]))
	if !strings.Contains(got, `ports: ["8080:8080/tcp", "9090:9090/tcp", "7000:7000/tcp"]`) ||
		!strings.Contains(got, `host: ["80:8080", "90:9090"]`) {
		t.Errorf("the ports are those of\n%s", got)
	}
	for _, want := range []string{"81 is left out: 80 of the hosts leads to 8080 already"} {
		if !strings.Contains(r.Warnings.Error(), want) {
			t.Errorf("%q is no warning of\n%s", want, r.Warnings)
		}
	}
}
