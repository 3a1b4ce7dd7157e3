// Package cli holds the parts that all commands of pando share: the streams of the process, errors
// of the command line with their exit codes, and results for people or for programs.
//
// It contains no command, and it decides nothing.
package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// Version is the version of this pando. The build may set it.
var Version = "unreleased"

// Env holds the parts of the process that a command may use.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
}

// Output prints the results of commands: text for people, JSON for programs.
type Output struct {
	Env
	JSON bool
}

// Flag adds the flag -o to a command that prints a result.
func (o *Output) Flag(c *cobra.Command) *cobra.Command {
	c.Flags().VarP((*format)(&o.JSON), "output", "o", "format: text for people, json for programs")
	return c
}

// format is the flag -o.
type format bool

func (f *format) String() string { return map[bool]string{true: "json", false: "text"}[bool(*f)] }
func (f *format) Type() string   { return "text|json" }
func (f *format) Set(s string) error {
	if s != "json" && s != "text" {
		return fmt.Errorf("want text or json, got %q", s)
	}
	*f = s == "json"
	return nil
}

// Show prints v as JSON for programs, or calls text to print it for people.
func (o *Output) Show(v any, text func(w io.Writer)) error {
	page := NewPage(o.Env)
	if !o.JSON {
		text(page)
		return o.Print(page.Bytes())
	}
	e := json.NewEncoder(page)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	return o.Print(page.Bytes())
}

// Print writes to standard output. It returns an error if the write fails, for example because a
// file is on a full disk.
func (o *Output) Print(text []byte) error {
	if _, err := o.Stdout.Write(text); err != nil {
		return fmt.Errorf("the output is incomplete: %w", err)
	}
	return nil
}
