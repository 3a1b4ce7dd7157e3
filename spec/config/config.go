// Package config renders templates of configs. A template sees the spec of its service, the
// services that it names, and secrets. The language is text/template with a few functions.
//
// A template has the names of services and secrets as plain texts. So Sources lists them without
// running it, and a change of any other service never renders it again. Rendering ends soon and in
// little memory: it loops over lists alone, and a Budget bounds its work and its output.
package config

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"pando.run/pando"
)

// Template is a parsed template.
type Template struct {
	name     string
	tree     *template.Template
	services []pando.ServiceName // that it names, sorted
	secrets  []string
	nodes    int // outside the bodies of loops
}

// Service is a service as a template sees it.
type Service struct {
	Name  string
	VIP   string // its IPv4 address
	VIP6  string
	Ports []Port // that it publishes
	// Endpoints are its instances that take connections, sorted by name.
	Endpoints []Endpoint
}

// Port is a published port.
type Port struct {
	Published, Target int
	Protocol          string
}

// Port returns the first published port, or 0.
func (s Service) Port() int {
	if len(s.Ports) == 0 {
		return 0
	}
	return s.Ports[0].Published
}

// Endpoint is an instance of a service as a template sees it.
type Endpoint struct {
	Name     string // of the instance
	Host     string
	IP       string
	IP6      string
	Port     int // the first target port of its service
	Weight   int
	Revision int
}

// Self is the dot of a template: the instance with the config.
type Self struct {
	Service, Tenant, Instance, Host string
	Ordinal                         int // of a stateful service, from 0 on
	Ports                           []Port
	Environment, Labels             map[string]string
}

// Facts are everything that a template can see.
type Facts struct {
	Self     Self
	Services map[pando.ServiceName]Service // absent: not in the cluster
	Secrets  map[string][]byte
}

// Parse reads a template. Errors carry the line in the template.
func Parse(name, text string) (*Template, error) {
	t := &Template{name: name}
	if len(declares.FindAllStringIndex(text, parsedVariablesMax+1)) > parsedVariablesMax {
		return nil, t.wrong(fmt.Errorf("%s:1: more than %d variables", name, variablesMax))
	}
	tree, err := template.New(name).Option("missingkey=zero").
		Funcs(t.functions(Facts{}, NewBudget())).Parse(text)
	if err != nil {
		return nil, t.wrong(err)
	}
	t.tree = tree
	if err := t.look(); err != nil {
		return nil, err
	}
	if tree.Tree != nil {
		t.nodes = charge(tree.Root)
	}
	return t, nil
}

// Services returns the services that a template names, sorted.
func (t *Template) Services() []pando.ServiceName { return t.services }

// Secrets returns the secrets that a template names, sorted.
func (t *Template) Secrets() []string { return t.secrets }

// wrong returns an error of text/template in words of a spec: line 3: cause.
func (t *Template) wrong(err error) error {
	text := strings.TrimPrefix(err.Error(), "template: ")
	if rest, ok := strings.CutPrefix(text, t.name+":"); ok {
		text = "line " + rest
	}
	return fmt.Errorf("%w: the template of %s: %s", pando.ErrInvalid, t.name, text)
}

// errLarge ends a template with too much output.
var errLarge = errors.New("the file is larger than 128 KiB")

// output is the file in the making.
type output struct{ strings.Builder }

// Write adds to the file up to its bound.
func (o *output) Write(b []byte) (int, error) {
	if o.Len()+len(b) > pando.ConfigBytesMax {
		return 0, errLarge
	}
	return o.Builder.Write(b)
}

// Render returns the file for an instance. It takes from the budget of the instance.
func (t *Template) Render(f Facts, b *Budget) ([]byte, error) {
	tree, err := t.tree.Clone()
	if err != nil {
		return nil, t.wrong(err)
	}
	var out output
	if err = b.step(t.nodes); err == nil {
		err = tree.Funcs(t.functions(f, b)).Execute(&out, f.Self)
	}
	switch {
	case errors.Is(err, errLarge):
		return nil, fmt.Errorf("%w: the template of %s: %w", pando.ErrTooLarge, t.name, errLarge)
	case errors.Is(err, errWork):
		return nil, fmt.Errorf("the template of %s: %w", t.name, errWork)
	}
	if err != nil {
		return nil, t.wrong(err)
	}
	return []byte(out.String()), nil
}

// functions returns the functions of a template over facts.
func (t *Template) functions(f Facts, b *Budget) template.FuncMap {
	all := b.functions()
	maps.Copy(all, template.FuncMap{
		"service": func(name string) *Service {
			if s, ok := f.Services[pando.ServiceName(name)]; ok {
				return &s
			}
			return nil
		},
		"endpoints": func(name string) []Endpoint {
			return f.Services[pando.ServiceName(name)].Endpoints
		},
		"secret": func(name string) (string, error) {
			content, ok := f.Secrets[name]
			if !ok {
				return "", fmt.Errorf("secret %s: %w", name, pando.ErrNotFound)
			}
			return b.text(string(content))
		},
		"default": func(otherwise, value string) string {
			if value == "" {
				return otherwise
			}
			return value
		},
	})
	return all
}

// declares finds a new variable. Reading a template takes time by the square of their number, so one
// with parsedVariablesMax is not read.
var declares = regexp.MustCompile(`\$\w*\s*:=`)

const parsedVariablesMax = 10 * variablesMax

// wide is a width or a precision in a format that would fill the memory.
var wide = regexp.MustCompile(`[0-9]{4,}|\*`)

// Sample returns facts that have every service and secret of a template. A deploy renders it once,
// so that a wrong field is found there.
func (t *Template) Sample(self Self) Facts {
	f := Facts{Self: self, Services: map[pando.ServiceName]Service{}, Secrets: map[string][]byte{}}
	for _, name := range t.services {
		f.Services[name] = Service{Name: string(name), VIP: "10.127.0.1", VIP6: "fd70::1",
			Ports: []Port{{80, 8080, "tcp"}},
			Endpoints: []Endpoint{{Name: string(name) + "-sample", Host: "sample", IP: "10.126.0.2",
				IP6: "fd70::2", Port: 8080, Weight: 100, Revision: 1}}}
	}
	for _, name := range t.secrets {
		f.Secrets[name] = []byte("sample")
	}
	return f
}

// note adds a name to a sorted list.
func note[T ~string](all []T, name T) []T {
	at, known := slices.BinarySearch(all, name)
	if known {
		return all
	}
	return slices.Insert(all, at, name)
}
