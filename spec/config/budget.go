package config

import (
	"fmt"
	"reflect"
	"strings"
	"text/template"
	"text/template/parse"

	"pando.run/pando"
)

// Bounds of the work on the templates of one instance, all together. A step is the evaluation of one
// node of a template, at most a few microseconds.
const (
	stepsMax     = 250_000
	madeBytesMax = 1 << 20              // of texts and lists that functions make
	textBytesMax = pando.ConfigBytesMax // of one such text: a longer one fits into no file
	printfMax    = 4 << 20              // of the longest possible result of printf, before it is made
	variablesMax = 100                  // of one template: a look-up goes through all of them
)

// Budget bounds the work on the templates of one instance.
//
// Templates are rendered in this process and not in a child with limits. The budget bounds memory
// and time soundly, because a template has no other way to spend either:
//
//   - There is no recursion: look refuses define, block and template.
//   - All repetition is range. look appends the function loop to the pipeline of each range. It
//     charges all turns ahead, each with the nodes of the body.
//   - Every function that makes a text or a list is ours, also those that replace functions of
//     text/template. It charges the bytes before it makes more than textBytesMax, and takes no lists
//     and structures, whose text has no bound.
//   - The value of an action goes to the file, which has a bound.
//   - A look-up of a variable goes through at most variablesMax.
//
// A child per render would cost the start of a process for each change of an endpoint, on each host.
type Budget struct{ steps, bytes int }

// NewBudget returns the budget for the templates of one instance.
func NewBudget() *Budget { return &Budget{stepsMax, madeBytesMax} }

// errWork ends a template with too much work.
var errWork = fmt.Errorf("%w: the template does too much: at most %d steps and %d bytes of texts, "+
	"with all templates of the instance", pando.ErrTooLarge, stepsMax, madeBytesMax)

// step charges evaluations of nodes.
func (b *Budget) step(n int) error {
	if n < 0 || n > b.steps {
		b.steps = 0
		return errWork
	}
	b.steps -= n
	return nil
}

// takes charges bytes that a function makes.
func (b *Budget) takes(n int) error {
	if n > b.bytes {
		b.bytes = 0
		return errWork
	}
	b.bytes -= n
	return nil
}

// text charges a text that a function made.
func (b *Budget) text(s string) (string, error) {
	if len(s) > textBytesMax {
		return "", fmt.Errorf("%w: a text of more than 128 KiB", errWork)
	}
	return s, b.takes(len(s))
}

// loopName is the function that look appends to the pipeline of each range.
const loopName = "_loop"

// loop charges all turns of a range ahead. body is the number of nodes of one turn. The keys of a
// map are sorted first.
func (b *Budget) loop(body int, list reflect.Value) (reflect.Value, error) {
	for list.Kind() == reflect.Interface || list.Kind() == reflect.Pointer {
		list = list.Elem()
	}
	switch list.Kind() {
	case reflect.Slice, reflect.Map:
	default:
		return list, fmt.Errorf("range takes a list, and not %v", list.Kind())
	}
	const sorting = 8
	if body > stepsMax || list.Len() > stepsMax {
		return list, errWork
	}
	return list, b.step(list.Len() * (body + sorting))
}

// plain returns the bytes of arguments as texts. It refuses lists and structures.
func plain(args []any) (sum, longest int, err error) {
	const number = 32
	for _, a := range args {
		n := number
		switch v := reflect.ValueOf(a); v.Kind() {
		case reflect.String:
			n = v.Len()
		case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
			reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64,
			reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		default:
			return 0, 0, fmt.Errorf("a text is made of texts and numbers, and not of %v", v.Kind())
		}
		if sum += n; sum > textBytesMax {
			return 0, 0, fmt.Errorf("%w: a text of more than 128 KiB", errWork)
		}
		longest = max(longest, n)
	}
	return sum, longest, nil
}

// made returns a function that makes a text of its arguments, each byte of at most six.
func (b *Budget) made(f func(...any) string) func(...any) (string, error) {
	return func(args ...any) (string, error) {
		if _, _, err := plain(args); err != nil {
			return "", err
		}
		return b.text(f(args...))
	}
}

// printf is fmt.Sprintf with a bound. A verb may print any argument, so the longest counts for each.
func (b *Budget) printf(format string, args ...any) (string, error) {
	if wide.MatchString(format) {
		return "", fmt.Errorf("the format %q has a width above 999", format)
	}
	sum, longest, err := plain(args)
	if err != nil {
		return "", err
	}
	const verb, escaped = 2500, 10 // of width and precision; bytes of an escaped one
	if strings.ContainsAny(format, "qxXU#") {
		longest *= escaped
	}
	if err := b.takes(len(format)); err != nil {
		return "", err
	}
	worst := len(format) + strings.Count(format, "%")*(verb+longest) + sum + verb*len(args)
	if worst > printfMax {
		return "", fmt.Errorf("%w: a format with too many verbs for its texts", errWork)
	}
	return b.text(fmt.Sprintf(format, args...))
}

// split is strings.Split with a bound. An element is a pair of words.
func (b *Budget) split(by, text string) ([]string, error) {
	const element = 16
	if err := b.takes(len(text) + element*(strings.Count(text, by)+1)); err != nil {
		return nil, err
	}
	return strings.Split(text, by), nil
}

// join is strings.Join with a bound.
func (b *Budget) join(by string, all []string) (string, error) {
	size := 0
	for _, one := range all {
		if size += len(by) + len(one); size > textBytesMax {
			return "", fmt.Errorf("%w: a text of more than 128 KiB", errWork)
		}
	}
	if err := b.takes(size); err != nil {
		return "", err
	}
	return strings.Join(all, by), nil
}

// of returns a function over one text with a bound.
func (b *Budget) of(f func(string) string) func(string) (string, error) {
	return func(s string) (string, error) {
		if len(s) > textBytesMax {
			return "", errWork
		}
		return b.text(f(s))
	}
}

// functions returns the functions that make texts and lists, and the charge of loops.
func (b *Budget) functions() template.FuncMap {
	return template.FuncMap{
		"print": b.made(fmt.Sprint), "println": b.made(fmt.Sprintln), "printf": b.printf,
		"html": b.made(template.HTMLEscaper), "js": b.made(template.JSEscaper),
		"urlquery": b.made(template.URLQueryEscaper),
		"trim":     b.of(strings.TrimSpace), "lower": b.of(strings.ToLower),
		"upper": b.of(strings.ToUpper), "join": b.join, "split": b.split,
		loopName: b.loop,
	}
}

// charge appends the charge to the pipeline of each range below a list. It returns the nodes of the
// list; bodies of ranges count for themselves.
func charge(all *parse.ListNode) (nodes int) {
	if all == nil {
		return 0
	}
	branch := func(n *parse.BranchNode) int {
		return 1 + words(n.Pipe) + charge(n.List) + charge(n.ElseList)
	}
	for _, n := range all.Nodes {
		switch n := n.(type) {
		case *parse.ActionNode:
			nodes += 1 + words(n.Pipe)
		case *parse.IfNode:
			nodes += branch(&n.BranchNode)
		case *parse.WithNode:
			nodes += branch(&n.BranchNode)
		case *parse.RangeNode:
			nodes += 2 + words(n.Pipe) + charge(n.ElseList)
			n.Pipe.Cmds = append(n.Pipe.Cmds, looping(n.Position(), 1+charge(n.List)))
		default:
			nodes++
		}
	}
	return nodes
}

// words counts the words of a pipeline.
func words(p *parse.PipeNode) (n int) {
	if p == nil {
		return 0
	}
	n = len(p.Decl)
	for _, c := range p.Cmds {
		for _, arg := range c.Args {
			n++
			switch arg := arg.(type) {
			case *parse.PipeNode:
				n += words(arg)
			case *parse.ChainNode:
				n += len(arg.Field)
				if inner, ok := arg.Node.(*parse.PipeNode); ok {
					n += words(inner)
				}
			case *parse.FieldNode:
				n += len(arg.Ident)
			case *parse.VariableNode:
				n += len(arg.Ident)
			}
		}
	}
	return n
}

// looping returns the command of a pipeline that charges a range.
func looping(at parse.Pos, body int) *parse.CommandNode {
	return &parse.CommandNode{NodeType: parse.NodeCommand, Pos: at, Args: []parse.Node{
		parse.NewIdentifier(loopName).SetPos(at),
		&parse.NumberNode{NodeType: parse.NodeNumber, Pos: at, IsInt: true, Int64: int64(body),
			Text: fmt.Sprint(body)},
	}}
}
