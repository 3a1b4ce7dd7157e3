package config

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

func facts() Facts {
	return Facts{
		Self: Self{Service: "edge", Tenant: "shop", Instance: "edge-1", Host: "h1", Ordinal: 2,
			Ports:       []Port{{80, 8080, "tcp"}},
			Environment: map[string]string{"B": "2", "A": "1"}, Labels: map[string]string{}},
		Services: map[pando.ServiceName]Service{"api": {
			Name: "api", VIP: "10.127.0.9", VIP6: "fd70::9", Ports: []Port{{80, 9000, "tcp"}},
			Endpoints: []Endpoint{{Name: "api-1", Host: "h1", IP: "10.126.0.2", Port: 9000, Weight: 100},
				{Name: "api-2", Host: "h2", IP: "10.126.16.2", Port: 9000, Weight: 50}},
		}},
		Secrets: map[string][]byte{"key": []byte("hush\n")},
	}
}

func TestTemplatesRender(t *testing.T) {
	for _, c := range [][2]string{
		{`plain`, "plain"},
		{`{{range endpoints "api"}}{{.IP}}:{{.Port}}*{{.Weight}} {{end}}`, "10.126.0.2:9000*100 " +
			"10.126.16.2:9000*50 "},
		{`{{with service "api"}}{{.VIP}}:{{.Port}}{{end}}`, "10.127.0.9:80"},
		{`{{(service "api").Port}}`, "80"},
		{`{{with service "gone"}}x{{else}}none{{end}}`, "none"},
		{`{{range endpoints "gone"}}x{{else}}none{{end}}`, "none"},
		{`{{range $i, $e := endpoints "api"}}{{$i}}{{$e.Host}}{{end}}`, "0h11h2"},
		{`{{with service "api"}}{{range .Endpoints}}{{.Name}}{{end}}{{end}}`, "api-1api-2"},
		{`{{secret "key" | trim}}`, "hush"},
		{`{{.Service}} {{.Tenant}} {{.Instance}} {{.Host}} {{.Ordinal}}`, "edge shop edge-1 h1 2"},
		{`{{range $k, $v := .Environment}}{{$k}}{{$v}}{{end}}{{.Environment.C}}`, "A1B2"},
		{`{{.Environment.LOG | default "info"}}`, "info"},
		{`{{range .Ports}}{{.Published}}{{end}}{{range split "," "a,b"}}<{{.}}>{{end}}`, "80<a><b>"},
		{`{{printf "%03d" .Ordinal}}{{upper "x"}}{{lower "Y"}}`, "002Xy"},
		{`{{len (endpoints "api")}}{{if eq (len (endpoints "gone")) 0}} empty{{end}}`, "2 empty"},
	} {
		text, want := c[0], c[1]
		tmpl, err := Parse("a.conf", text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, err := tmpl.Render(facts(), NewBudget()); err != nil || string(got) != want {
			t.Errorf("%s renders %q (%v), want %q", text, got, err, want)
		}
		if _, err := tmpl.Render(tmpl.Sample(Self{}), NewBudget()); err != nil {
			t.Errorf("%s with samples: %v", text, err)
		}
	}
}

func TestATemplateTellsItsSources(t *testing.T) {
	tmpl, err := Parse("a", `{{secret "b"}}{{if secret "a"}}{{range endpoints "z"}}
{{with service "c"}}{{(service "d").VIP}}{{end}}{{end}}{{else}}{{len (endpoints "c")}}{{end}}`)
	if err != nil {
		t.Fatal(err)
	}
	if want := []pando.ServiceName{"c", "d", "z"}; !slices.Equal(tmpl.Services(), want) {
		t.Errorf("it names %v, want %v", tmpl.Services(), want)
	}
	if want := []string{"a", "b"}; !slices.Equal(tmpl.Secrets(), want) {
		t.Errorf("it has the secrets %v, want %v", tmpl.Secrets(), want)
	}
}

// A template cannot hide its sources, and cannot run without an end.
func TestHostileTemplatesAreRefused(t *testing.T) {
	loops := strings.Repeat(`{{range .Ports}}`, 4) + strings.Repeat(`{{end}}`, 4)
	for text, want := range map[string]string{
		`{{`:                               "line 1: unclosed action",
		"a\n{{end}}":                       "line 2: unexpected {{end}}",
		`{{nope}}`:                         `function "nope" not defined`,
		`{{endpoints .Service}}`:           "write the name behind endpoints in quotes",
		`{{"api" | endpoints}}`:            "write the name behind endpoints in quotes",
		`{{range endpoints "A_b"}}{{end}}`: "service",
		`{{secret (printf "a")}}`:          "write the name behind secret in quotes",
		`{{range 1000000000}}{{end}}`:      "range takes endpoints",
		`{{$n := 9}}{{range $n}}{{end}}`:   "range takes endpoints",
		`{{range .Ordinal}}{{end}}`:        "range takes endpoints",
		`{{range len "x"}}{{end}}`:         "range takes endpoints",
		loops:                              "more than 3 loops",
		`{{define "x"}}{{end}}`:            "define and block have no place",
		`{{define "a"}}{{template "a"}}{{end}}{{template "a"}}`: "no place in a config",
		`{{template "a.conf"}}`:                                 "template has no place",
		"x\n{{if (service .Host)}}{{end}}":                      "line 2:",
	} {
		_, err := Parse("a.conf", text)
		if !errors.Is(err, pando.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestErrorsOfRenderingHaveALine(t *testing.T) {
	for text, want := range map[string]string{
		"\n{{range endpoints \"api\"}}{{.Adress}}{{end}}": "line 2:",
		`{{(service "gone").VIP}}`:                        "nil pointer",
		`{{secret "other"}}`:                              "secret other: not found",
		`{{printf "%9999d" 1}}`:                           "width above 999",
		`{{printf "%*d" 1 2}}`:                            "width above 999",
		`{{.Nope}}`:                                       "can't evaluate field Nope",
	} {
		tmpl, err := Parse("a.conf", text)
		if err == nil {
			_, err = tmpl.Render(facts(), NewBudget())
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestAFileHasABound(t *testing.T) {
	f := facts()
	var many []Endpoint
	for range 1000 {
		many = append(many, Endpoint{Name: "api"})
	}
	f.Services["api"] = Service{Endpoints: many}
	tmpl, err := Parse("a.conf",
		`{{range endpoints "api"}}{{range endpoints "api"}}{{.Name}}{{end}}{{end}}`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tmpl.Render(f, NewBudget()); !errors.Is(err, pando.ErrTooLarge) {
		t.Errorf("a million lines: %v", err)
	}
	var all strings.Builder
	for n := range pando.ConfigSourcesMax + 1 {
		all.WriteString(`{{endpoints "s` + strings.Repeat("a", n+1) + `"}}`)
	}
	if _, err := Parse("a.conf", all.String()); err == nil {
		t.Error("a template names any number of services")
	}
}

// cost returns the bytes that a render allocates and the error of it.
func cost(tmpl *Template, f Facts) (bytes uint64, err error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = tmpl.Render(f, NewBudget())
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, err
}

// costMax is more than any render allocates: its texts, one result that is too long, and a few words
// for each step.
const costMax = 128 << 20

// crowded are facts as large as they get.
func crowded() Facts {
	f := facts()
	many := make([]Endpoint, pando.EndpointsMax)
	for n := range many {
		many[n] = Endpoint{Name: "api-" + strings.Repeat("x", 50), Host: "h", IP: "10.126.0.2", Port: 1}
	}
	f.Services["api"] = Service{Name: "api", Endpoints: many}
	f.Self.Environment["BIG"] = strings.Repeat("b", 100<<10)
	f.Self.Environment["BIG2"] = strings.Repeat("b", 100<<10)
	f.Secrets["key"] = bytes.Repeat([]byte("s"), pando.SecretBytesMax)
	return f
}

// Each of these took any amount of memory or time.
func TestTheWorkOfATemplateIsBounded(t *testing.T) {
	twice := func(action string, times int) string { return strings.Repeat(action, times) }
	commas := strings.Repeat(",", 10_000)
	body := `{{range .Environment}}` + twice(`{{if eq 1 2}}{{end}}`, 3000) + `{{end}}`
	for name, text := range map[string]string{
		"printf doubles":  `{{$a := "0123456789abcdef"}}` + twice(`{{$a = printf "%s%s" $a $a}}`, 40) + "x",
		"print doubles":   `{{$a := "0123456789abcdef"}}` + twice(`{{$a = print $a $a}}`, 40),
		"println doubles": `{{$a := "0123456789abcdef"}}` + twice(`{{$a = println $a $a}}`, 40),
		"html grows":      `{{$a := "<<<<<<<<<<<<<<<<"}}` + twice(`{{$a = html $a}}`, 2000),
		"js grows":        `{{$a := "<<<<<<<<<<<<<<<<"}}` + twice(`{{$a = js $a $a}}`, 2000),
		"urlquery grows":  `{{$a := "%%%%%%%%%%%%%%%%"}}` + twice(`{{$a = urlquery $a $a}}`, 2000),
		"upper again":     `{{$a := .Environment.BIG}}` + twice(`{{$a = upper $a}}`, 2000),
		"join doubles": `{{$a := "0123456789abcdef,"}}` + twice(
			`{{$a = join $a (split "," (print $a ",,,,,,,,"))}}`, 40),
		"a verb repeats an argument": `{{printf "` + twice("%[1]s", 20_000) + `" .Environment.BIG}}`,
		"a list as a text":           `{{len (printf "` + twice("%[1]v", 20_000) + `" (endpoints "api"))}}`,
		"a list printed":             `{{len (print (endpoints "api"))}}`,
		"wide verbs":                 `{{len (printf "` + twice("%999.999f", 10_000) + `" 1.0)}}`,
		"split in loops": `{{range split "," "` + commas + `"}}{{range split "," "` + commas +
			`"}}{{range split "," "` + commas + `"}}{{end}}{{end}}{{end}}`,
		"endpoints in loops": `{{range endpoints "api"}}{{range endpoints "api"}}` +
			`{{range endpoints "api"}}{{end}}{{end}}{{end}}`,
		"a long body in loops": `{{range endpoints "api"}}{{range endpoints "api"}}` + body + `{{end}}{{end}}`,
		"secrets again":        twice(`{{if secret "key"}}{{end}}`, 100),
	} {
		tmpl, err := Parse("a.conf", text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		used, err := cost(tmpl, crowded())
		if err == nil || used > costMax {
			t.Errorf("%s: %d bytes, %v", name, used, err)
		}
	}
	for name, text := range map[string]string{
		"many variables": func() string {
			var all strings.Builder
			for n := range 5000 {
				fmt.Fprintf(&all, `{{$a%d := 1}}`, n)
			}
			return all.String()
		}(),
		"the charge itself": `{{_loop 0 .Ports}}`,
	} {
		if _, err := Parse("a.conf", text); !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The templates of an instance share a budget: 32 small ones cost no more than one.
func TestTemplatesOfAnInstanceShareABudget(t *testing.T) {
	tmpl, err := Parse("a.conf", `{{range endpoints "api"}}{{range .Name | split "-"}}{{end}}{{end}}`)
	if err != nil {
		t.Fatal(err)
	}
	b, f := NewBudget(), crowded()
	for n := range 100 {
		if _, err = tmpl.Render(f, b); err != nil {
			if n == 0 {
				t.Error("a loop over the endpoints of a large service is refused")
			}
			break
		}
	}
	if !errors.Is(err, pando.ErrTooLarge) {
		t.Errorf("no end of the budget: %v", err)
	}
}

// A loop over all endpoints of a large service with a usual line fits.
func TestAUsualTemplateIsWithinTheBudget(t *testing.T) {
	f := facts()
	many := make([]Endpoint, 2000)
	f.Services["api"] = Service{Name: "api", Endpoints: many}
	tmpl, err := Parse("a.conf", `{{range $i, $e := endpoints "api"}}`+
		`  server {{$e.Name}} {{$e.IP}}:{{$e.Port}} weight {{$e.Weight}} check{{if eq $i 0}} x{{end}}
{{end}}`)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := tmpl.Render(f, NewBudget()); err != nil || len(out) < 28*2000 {
		t.Errorf("%d bytes: %v", len(out), err)
	}
}

// No template panics, each that parses renders with samples or has an error, and none costs much.
func FuzzTemplate(f *testing.F) {
	for _, text := range []string{`{{range endpoints "a"}}{{.IP}}{{end}}`,
		`{{with service "a"}}{{end}}`,
		`{{secret "x" | default "y"}}`, `{{range $k, $v := .Labels}}{{$k}}{{else}}{{break}}{{end}}`,
		`{{$a := "ab"}}{{$a = printf "%s%s" $a $a}}{{$a = print $a $a | html}}{{$a = join $a (split "" $a)}}`,
		`{{range endpoints "api"}}{{range split "x" .Name}}{{upper .}}{{end}}{{end}}`,
		`{{printf "%[1]q%[1]x% #x" .Environment.BIG}}{{if eq .Environment.BIG .Environment.BIG2}}{{end}}`} {
		f.Add(text)
	}
	large := crowded()
	f.Fuzz(func(t *testing.T, text string) {
		tmpl, err := Parse("a.conf", text)
		if err != nil {
			return
		}
		out, err := tmpl.Render(tmpl.Sample(Self{}), NewBudget())
		if err == nil && len(out) > pando.ConfigBytesMax {
			t.Errorf("%d bytes", len(out))
		}
		began := time.Now()
		if used, _ := cost(tmpl, large); used > costMax || time.Since(began) > 10*time.Second {
			t.Errorf("%d bytes in %v", used, time.Since(began))
		}
	})
}
