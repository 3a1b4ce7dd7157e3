package config

import (
	"fmt"
	"text/template/parse"

	"pando.run/pando"
)

// rangesMax is the depth of loops in a template.
const rangesMax = 3

// lists are the fields over which a template may loop. A loop over a number has no bound.
var lists = map[string]bool{
	"Ports": true, "Endpoints": true, "Environment": true, "Labels": true,
}

// looker walks a template and collects the names in it.
type looker struct {
	t      *Template
	errs   []error
	ranges int
	names  int // variables
}

// look finds the services and secrets of a template, and refuses parts without a bound.
func (t *Template) look() error {
	l := &looker{t: t}
	for _, one := range t.tree.Templates() {
		if one.Name() != t.name {
			return t.wrong(fmt.Errorf("%s:1: define and block have no place in a config", t.name))
		}
	}
	if t.tree.Tree != nil && t.tree.Tree.Root != nil {
		l.list(t.tree.Tree.Root)
	}
	if len(l.errs) > 0 {
		return l.errs[0]
	}
	if n := len(t.services); n > pando.ConfigSourcesMax {
		return t.wrong(fmt.Errorf("%s:1: names %d services: want at most %d", t.name, n,
			pando.ConfigSourcesMax))
	}
	return nil
}

func (l *looker) deny(n parse.Node, format string, args ...any) {
	place, _ := l.t.tree.Tree.ErrorContext(n)
	l.errs = append(l.errs, l.t.wrong(fmt.Errorf("%s: %s", place, fmt.Sprintf(format, args...))))
}

func (l *looker) list(all *parse.ListNode) {
	if all == nil {
		return
	}
	for _, n := range all.Nodes {
		switch n := n.(type) {
		case *parse.ActionNode:
			l.pipe(n.Pipe)
		case *parse.IfNode:
			l.branch(&n.BranchNode)
		case *parse.WithNode:
			l.branch(&n.BranchNode)
		case *parse.RangeNode:
			if !isList(n.Pipe) {
				l.deny(n, "range takes endpoints \"NAME\", split, or one of .Ports, .Endpoints, "+
					".Environment and .Labels")
			}
			if l.ranges++; l.ranges > rangesMax {
				l.deny(n, "more than %d loops in each other", rangesMax)
			}
			l.branch(&n.BranchNode)
			l.ranges--
		case *parse.TemplateNode:
			l.deny(n, "template has no place in a config")
		}
	}
}

func (l *looker) branch(n *parse.BranchNode) {
	l.pipe(n.Pipe)
	l.list(n.List)
	l.list(n.ElseList)
}

// isList reports whether the value of a pipeline is a list.
func isList(p *parse.PipeNode) bool {
	if p == nil || len(p.Cmds) == 0 {
		return false
	}
	args := p.Cmds[len(p.Cmds)-1].Args
	switch n := args[0].(type) {
	case *parse.IdentifierNode:
		return n.Ident == "endpoints" || n.Ident == "split"
	case *parse.FieldNode:
		return lists[n.Ident[len(n.Ident)-1]]
	case *parse.VariableNode:
		return len(n.Ident) > 1 && lists[n.Ident[len(n.Ident)-1]]
	case *parse.ChainNode:
		return lists[n.Field[len(n.Field)-1]]
	}
	return false
}

func (l *looker) pipe(p *parse.PipeNode) {
	if p == nil {
		return
	}
	if !p.IsAssign {
		l.names += len(p.Decl)
	}
	if l.names > variablesMax {
		l.deny(p, "more than %d variables", variablesMax)
		return
	}
	for _, c := range p.Cmds {
		for n, arg := range c.Args {
			switch arg := arg.(type) {
			case *parse.PipeNode:
				l.pipe(arg)
			case *parse.ChainNode:
				if inner, ok := arg.Node.(*parse.PipeNode); ok {
					l.pipe(inner)
				}
			case *parse.IdentifierNode:
				l.call(p, c, n, arg)
			}
		}
	}
}

// call notes the name of a service or secret. Computed names would hide the sources.
func (l *looker) call(p *parse.PipeNode, c *parse.CommandNode, n int, f *parse.IdentifierNode) {
	if f.Ident == loopName {
		l.deny(f, "function %q not defined", loopName)
	}
	if f.Ident != "service" && f.Ident != "endpoints" && f.Ident != "secret" {
		return
	}
	var name *parse.StringNode
	if n == 0 && len(c.Args) == 2 {
		name, _ = c.Args[1].(*parse.StringNode)
	}
	if name == nil || c != p.Cmds[0] {
		l.deny(f, "write the name behind %s in quotes: %[1]s \"NAME\"", f.Ident)
		return
	}
	if f.Ident == "secret" {
		l.t.secrets = note(l.t.secrets, name.Text)
		return
	}
	if err := pando.CheckLabel("service", name.Text); err != nil {
		l.deny(f, "%v", err)
		return
	}
	l.t.services = note(l.t.services, pando.ServiceName(name.Text))
}
