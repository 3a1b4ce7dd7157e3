package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

var update = flag.Bool("update", false, "write the generated files")

// compare checks that a generated file equals the committed one.
func compare(t *testing.T, path string, want []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is stale: make it again with `go test ./api -update`", path)
	}
}

// contract builds the operators' API and returns its document with the comments of the sources.
func contract(t *testing.T) *huma.OpenAPI {
	t.Helper()
	a := humago.New(http.NewServeMux(), document())
	operators{}.routes(a)
	limit(a.OpenAPI())
	limitBodies(a.OpenAPI().Components.Schemas.Map())
	explain(readSources(t), a.OpenAPI().Components.Schemas)
	return a.OpenAPI()
}

// limits are patterns of parameters whose form the code checks, with errors that explain more than
// a pattern.
var limits = map[string]string{
	"query service":   `^([a-z]([a-z0-9-]{0,51}[a-z0-9])?)?$`,
	"query tenant":    `^([a-z]([a-z0-9-]{0,51}[a-z0-9])?)?$`,
	"path name":       `^[a-z]([a-z0-9-]{0,51}[a-z0-9])?$`,
	"path tenant":     `^[a-z]([a-z0-9-]{0,51}[a-z0-9])?$`,
	"header If-Match": `^(\*|"[1-9][0-9]{0,17}"|[1-9][0-9]{0,17})?$`,
	"query grant": `^(device=[A-Za-z0-9][A-Za-z0-9._-]*|path=(/[A-Za-z0-9_-]+){3,}:(ro|rw)|` +
		`netns=host)$`,
	"path snapshot": `^(sha256:)?[0-9a-f]{6,64}$`,
}

// limit writes the limits into the document.
func limit(doc *huma.OpenAPI) {
	for _, item := range doc.Paths {
		for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Patch, item.Delete} {
			if op == nil {
				continue
			}
			for _, p := range op.Parameters {
				s, one := p.Schema, 1
				if s.Type == huma.TypeArray {
					s = s.Items
					s.MinLength = &one
				}
				if s.Type != huma.TypeString {
					continue
				}
				if s.Pattern = cmp.Or(s.Pattern, limits[p.In+" "+p.Name]); p.Required && s.Pattern == "" {
					s.MinLength = &one
				}
			}
		}
	}
}

// limitBodies writes the limits of bodies into the document.
func limitBodies(all map[string]*huma.Schema) {
	one := 1
	filled := func(field string) *huma.Schema {
		return &huma.Schema{Required: []string{field},
			Properties: map[string]*huma.Schema{field: {MinLength: &one, MinItems: &one}}}
	}
	all["Pulling"].Properties["reference"].Pattern =
		`^(oci:/.+|docker-archive:/.+|[a-z0-9]+([._/-][a-z0-9]+)*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?)$`
	all["SecretContent"].Properties["content"].Pattern =
		`^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)$`
	all["Recovery"].OneOf = []*huma.Schema{filled("force_from"), filled("move")}
	all["Spec"].AnyOf = []*huma.Schema{filled("command"), filled("entrypoint"), filled("image"),
		{Required: []string{"vm", "health"},
			Properties: map[string]*huma.Schema{"vm": filled("kernel")}}}
	all["Spec"].Properties["name"].Pattern = limits["path name"]
}

func TestTheDocumentIsTheCode(t *testing.T) {
	text, err := json.MarshalIndent(contract(t), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "openapi.json", append(text, '\n'))
}

func TestTheReferenceIsTheCode(t *testing.T) {
	compare(t, filepath.Join("..", "docs", "reference", "api.md"),
		reference(contract(t), readSources(t)))
}

// explain copies the comments of types, fields and constants into the schemas.
func explain(words words, schemas huma.Registry) {
	for name, s := range schemas.Map() {
		typ := schemas.TypeFromRef("#/components/schemas/" + name)
		s.Description = words.types[typ.Name()]
		for i := range typ.NumField() {
			f := typ.Field(i)
			explainField(s, typ.Name(), f, words)
			if f.Anonymous {
				for j := range f.Type.NumField() {
					explainField(s, f.Type.Name(), f.Type.Field(j), words)
				}
			}
		}
	}
}

func explainField(s *huma.Schema, owner string, f reflect.StructField, words words) {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	p := s.Properties[name]
	if p == nil || p.Ref != "" {
		return
	}
	if p.Description == "" {
		p.Description = words.fields[owner+"."+f.Name]
	}
	values, open := words.values[f.Type.Name()], map[string]bool{"Tenant": true, "Key": true}
	if len(values) > 0 && p.Type == "string" && !open[f.Type.Name()] {
		for _, v := range values {
			p.Enum = append(p.Enum, v)
		}
	}
}

// words are the comments of the sources by type and by field (Type.Field), and the values of each
// string type.
type words struct {
	types, fields map[string]string
	values        map[string][]string
	errors        map[string]string // by a sentinel's text: when it occurs
}

func readSources(t *testing.T) words {
	t.Helper()
	w := words{map[string]string{}, map[string]string{}, map[string][]string{}, map[string]string{}}
	fset := token.NewFileSet()
	for _, dir := range []string{"..", "."} {
		var files []*ast.File
		paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(path, "_test.go") {
				files = append(files, f)
			}
		}
		p, err := doc.NewFromFiles(fset, files, "pando.run/pando", doc.AllDecls)
		if err != nil {
			t.Fatal(err)
		}
		for _, typ := range p.Types {
			w.take(typ)
		}
		for _, v := range p.Vars {
			w.takeErrors(v)
		}
	}
	if len(w.values) < 5 || len(w.fields) < 50 {
		t.Fatalf("read %d fields and %d types of values: the test is looking in the wrong place",
			len(w.fields), len(w.values))
	}
	return w
}

func (w words) take(typ *doc.Type) {
	w.types[typ.Name] = strings.TrimSpace(strings.ReplaceAll(typ.Doc, "\n", " "))
	if i := strings.Index(typ.Doc, "\n\n"); i >= 0 { // a drawing follows
		w.types[typ.Name] = strings.ReplaceAll(typ.Doc[:i], "\n", " ")
	}
	for _, spec := range typ.Decl.Specs {
		s, ok := spec.(*ast.TypeSpec).Type.(*ast.StructType)
		if !ok {
			continue
		}
		for _, f := range s.Fields.List {
			for _, n := range f.Names {
				text := f.Doc.Text() + f.Comment.Text()
				w.fields[typ.Name+"."+n.Name] = strings.TrimSpace(strings.ReplaceAll(text, "\n", " "))
			}
		}
	}
	for _, c := range typ.Consts {
		for _, spec := range c.Decl.Specs {
			for _, v := range spec.(*ast.ValueSpec).Values {
				if lit, ok := v.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					text, _ := strconv.Unquote(lit.Value)
					w.values[typ.Name] = append(w.values[typ.Name], text)
				}
			}
		}
	}
}

func (w words) takeErrors(v *doc.Value) {
	for _, spec := range v.Decl.Specs {
		s := spec.(*ast.ValueSpec)
		if len(s.Values) != 1 {
			continue
		}
		call, ok := s.Values[0].(*ast.CallExpr)
		if !ok || len(call.Args) != 1 {
			continue
		}
		if lit, ok := call.Args[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
			text, _ := strconv.Unquote(lit.Value)
			w.errors[text] = strings.TrimSpace(s.Comment.Text())
		}
	}
}
