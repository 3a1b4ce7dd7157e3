package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/spec/nearest"
)

// helps marks a command that only prints its help, because its subcommands do the work.
const helps = "helps"

// explain turns every wrong command line into a usage error that explains the correct form.
func explain(c *cobra.Command) {
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if words := c.Flags().Args(); c.Annotations != nil && len(words) > 0 { // flags of a wrong command
			return noCommand(c, words)
		}
		return cli.Usagef("%s; `%s --help` lists its flags", flagError(err), c.CommandPath())
	})
	strict(c)
}

func strict(c *cobra.Command) {
	for _, sub := range c.Commands() {
		strict(sub)
	}
	switch check := c.Args; {
	case c.HasSubCommands() && c.RunE == nil:
		c.Annotations = map[string]string{helps: ""}
		c.Args = cobra.ArbitraryArgs
		c.RunE = func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return noCommand(c, args)
		}
	case check != nil:
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return cli.Usagef("%s given; want: %s", given(args), c.UseLine())
			}
			return groupError(c.ValidateFlagGroups())
		}
	}
}

var (
	apart  = regexp.MustCompile(`^if any flags in the group \[.*\] .*; \[(.*)\] were all set$`)
	needed = regexp.MustCompile(`^at least one of the flags in the group \[(.*)\] is required$`)
)

// groupError explains in plain words why flags do not go together.
func groupError(err error) error {
	if err == nil {
		return nil
	}
	words := func(names string) string {
		return "--" + strings.ReplaceAll(names, " ", " and --")
	}
	if m := apart.FindStringSubmatch(err.Error()); m != nil {
		return cli.Usagef("%s do not go together: write one of them", words(m[1]))
	}
	if m := needed.FindStringSubmatch(err.Error()); m != nil {
		return cli.Usagef("write one of %s", words(m[1]))
	}
	return cli.Usagef("%w", err)
}

// noCommand returns the error for words that are no command of c, with the command that is meant.
func noCommand(c *cobra.Command, words []string) error {
	hint := near(c, words[0])
	if to := translated(strings.Fields(c.CommandPath())[1:], words); to != "" {
		hint = ": Pando has `" + strings.ReplaceAll(to, "; ", "`, or `") + "`"
	}
	return cli.Usagef("%s has no command %q%s; `%s --help` lists them",
		c.CommandPath(), words[0], hint, c.CommandPath())
}

// given describes the number of arguments in words.
func given(args []string) string {
	if len(args) == 0 {
		return "no argument was"
	}
	if len(args) == 1 {
		return "one argument was"
	}
	return fmt.Sprintf("%d arguments were", len(args))
}

var (
	badValue = regexp.MustCompile(
		`^invalid argument "(.*)" for "(?:-., )?(--[a-z0-9-]+)" flag: (.*)$`)
	badLetter = regexp.MustCompile(`^unknown shorthand flag: '(.)' in (.*)$`)
)

// flagError explains in plain words why a flag is wrong.
func flagError(err error) string {
	if m := badLetter.FindStringSubmatch(err.Error()); m != nil {
		if m[1] >= "0" && m[1] <= "9" {
			return fmt.Sprintf("%s is below 0, or an unknown flag", m[2])
		}
		return fmt.Sprintf("there is no flag -%s", m[1])
	}
	m := badValue.FindStringSubmatch(err.Error())
	if m == nil {
		return err.Error()
	}
	switch cause := m[3]; {
	case strings.HasPrefix(cause, pando.ErrInvalid.Error()+": "):
		return fmt.Sprintf("%s: %s", m[2], strings.TrimPrefix(cause, pando.ErrInvalid.Error()+": "))
	case strings.HasPrefix(cause, "strconv.ParseBool"):
		return fmt.Sprintf("%s: want true or false, got %q", m[2], m[1])
	case strings.HasPrefix(cause, "strconv."):
		return fmt.Sprintf("%s: want a number, got %q", m[2], m[1])
	default:
		return fmt.Sprintf("%s: %s", m[2], cause)
	}
}

// near suggests a subcommand of c for an unknown word.
func near(c *cobra.Command, word string) string {
	var known []string
	for _, sub := range c.Commands() {
		if !sub.Hidden {
			known = append(known, sub.Name())
		}
	}
	if best := nearest.Word(word, known); best != "" {
		return fmt.Sprintf(": did you mean %q?", best)
	}
	return ""
}
