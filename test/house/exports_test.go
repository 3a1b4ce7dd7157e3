package house

import (
	"fmt"
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// export is one exported name of a package that others import.
type export struct {
	name       string
	at         token.Position
	documented bool
}

// exports returns the exported names of a file: functions, types, constants, variables, and the
// methods of exported types.
func (s source) exports() (out []export) {
	add := func(name string, at token.Pos, docs ...*ast.CommentGroup) {
		e := export{name: name, at: s.fset.Position(at)}
		for _, doc := range docs {
			e.documented = e.documented || doc != nil
		}
		out = append(out, e)
	}
	for _, d := range s.file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			on := receiver(d)
			if d.Name.IsExported() && (on == "" || ast.IsExported(on)) {
				add(strings.TrimPrefix(on+"."+d.Name.Name, "."), d.Pos(), d.Doc)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					if spec.Name.IsExported() {
						add(spec.Name.Name, spec.Pos(), d.Doc, spec.Doc, spec.Comment)
						out = append(out, s.methods(spec)...)
					}
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						if name.IsExported() {
							add(name.Name, name.Pos(), d.Doc, spec.Doc, spec.Comment)
						}
					}
				}
			}
		}
	}
	return out
}

// methods returns the methods of an exported interface.
func (s source) methods(spec *ast.TypeSpec) (out []export) {
	i, ok := spec.Type.(*ast.InterfaceType)
	if !ok {
		return nil
	}
	for _, m := range i.Methods.List {
		for _, name := range m.Names {
			out = append(out, export{
				spec.Name.Name + "." + name.Name, s.fset.Position(m.Pos()), m.Doc != nil || m.Comment != nil,
			})
		}
	}
	return out
}

// receiver returns the name of the type that a method belongs to, or "" for a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	t := f.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// TestEveryExportIsDocumented covers Go. In Rust the lint missing_docs does the same.
func TestEveryExportIsDocumented(t *testing.T) {
	all, documented := 0, 0
	for _, s := range sources(t) {
		if s.isTest() || s.generated || s.file.Name.Name == "main" {
			continue
		}
		for _, e := range s.exports() {
			all++
			if e.documented {
				documented++
				continue
			}
			t.Errorf("%s: %s has no comment: write `// %s returns|reports|waits for …`",
				e.at, e.name, e.name[strings.LastIndex(e.name, ".")+1:])
		}
	}
	t.Logf("exports: %d of %d are documented (%s)", documented, all,
		fmt.Sprintf("%.1f %%", 100*float64(documented)/float64(max(all, 1))))
	if all < 500 {
		t.Errorf("found %d exports: the test looks in the wrong place", all)
	}
}
