package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pando.run/pando/cmd/pando/cli"
)

var update = flag.Bool("update", false, "write the generated files")

func TestTheReferenceIsTheCode(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "reference", "cli.md")
	want := reference(rootCommand(cli.Env{Getenv: func(string) string { return "" }}))
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is stale (%v): make it again with `go test ./cmd/pando -run Reference -update`",
			path, err)
	}
}

// reference returns the text of docs/reference/cli.md.
func reference(root *cobra.Command) []byte {
	var b bytes.Buffer
	b.WriteString(`# The command line

<!-- Made from cmd/pando by: go test ./cmd/pando -run Reference -update -->

` + "`pando`" + ` is one binary: the daemons and the operator's commands. Commands use the socket
` + "`/run/pando/api.sock`" + ` (` + "`PANDO_API`" + ` names another one) and nothing else, so a
program can do the same by [the API](api.md). Every command takes ` + "`--help`" + `, and every
command with a result takes ` + "`-o json`" + `. Write times like
` + "`500ms`, `10s`, `1m30s` or `1d12h`" + `.

| exit code | |
|---|---|
| 0 | done |
| 1 | a defect, or a failed write to standard output |
| 2 | a wrong command line |
`)
	for _, k := range cli.Codes {
		fmt.Fprintf(&b, "| %d | %s |\n", k.Code, k.Name)
	}
	for _, g := range root.Groups() {
		fmt.Fprintf(&b, "\n## %s\n", strings.TrimSuffix(g.Title, ":"))
		describeSection(&b, root, g.ID)
	}
	b.WriteString("\n## Others\n")
	describeSection(&b, root, "")
	return b.Bytes()
}

func describeSection(b *bytes.Buffer, root *cobra.Command, group string) {
	for _, c := range root.Commands() {
		if c.GroupID == group && !c.Hidden && c.Name() != "help" && c.Name() != "completion" {
			walk(c, func(c *cobra.Command) { describe(b, c) })
		}
	}
}

func describe(b *bytes.Buffer, c *cobra.Command) {
	if _, only := c.Annotations[helps]; only {
		return // its subcommands are described instead
	}
	use, _, _ := strings.Cut(c.UseLine(), " [flags]")
	long := c.Long
	if long == "" {
		long = strings.ToUpper(c.Short[:1]) + c.Short[1:] + "."
	}
	fmt.Fprintf(b, "\n### `%s`\n\n%s\n\n", use, long)
	for line := range strings.SplitSeq(c.Example, "\n") {
		fmt.Fprintf(b, "    %s\n", strings.TrimSpace(line))
	}
	var rows []string
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) { rows = append(rows, flagRow(f)) })
	if p := c.Parent(); p.HasParent() { // flags of a group of commands
		p.PersistentFlags().VisitAll(func(f *pflag.Flag) { rows = append(rows, flagRow(f)) })
	}
	if rows != nil {
		fmt.Fprintf(b, "\n| flag | effect | default |\n|---|---|---|\n%s", strings.Join(rows, ""))
	}
}

func flagRow(f *pflag.Flag) string {
	if f.Name == "help" || f.Hidden {
		return ""
	}
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	if kind := f.Value.Type(); kind != "bool" {
		if !strings.Contains(kind, "|") { // a choice is shown as it is written
			kind = strings.ToUpper(strings.TrimSuffix(kind, "Slice"))
		}
		name += " " + strings.ReplaceAll(kind, "|", `\|`)
	}
	def := f.DefValue
	if def == "false" || def == "[]" || def == "" || def == "0s" {
		def = ""
	}
	return fmt.Sprintf("| `%s` | %s | %s |\n", name, f.Usage, def)
}
