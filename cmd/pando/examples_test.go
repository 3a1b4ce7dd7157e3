package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"pando.run/pando/cmd/pando/cli"
)

// wordsOf returns the command lines of pando in a line of shell, as the shell splits them. No
// program runs: PATH is empty, and pando is a function.
func wordsOf(t *testing.T, line string) (all [][]string) {
	t.Helper()
	dir := t.TempDir()
	out := filepath.Join(dir, "words")
	shell := exec.Command("/bin/bash", "--norc", "-c", "pando() { printf '%s\\x1f' \"$@\" >>"+out+
		"; printf '\\n' >>"+out+"; }\n"+line)
	shell.Dir, shell.Env = dir, []string{"PATH="}
	shell.Stdin = strings.NewReader("")
	text, _ := shell.CombinedOutput() // a program of the line is not there
	said, err := os.ReadFile(out)
	if err != nil {
		t.Errorf("%s: %v: %s", line, err, text)
	}
	for words := range strings.Lines(string(said)) {
		all = append(all, strings.Split(strings.TrimSuffix(words, "\x1f\n"), "\x1f"))
	}
	return all
}

// Every example of a help is a command line as it should be: its command, its flags and its files
// are there. One that needs a server gets as far as that.
func TestTheExamplesOfTheHelpAreTrue(t *testing.T) {
	lack, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(lack) // the files of examples are those of the project
	seen, ran := 0, 0
	walk(rootCommand(cli.Env{Getenv: func(string) string { return "" }}), func(c *cobra.Command) {
		own := false
		for line := range strings.Lines(c.Example) {
			for _, words := range wordsOf(t, strings.TrimSpace(line)) {
				seen++
				own = own || strings.HasPrefix("pando "+strings.Join(words, " ")+" ", c.CommandPath()+" ")
				ran += tryExample(t, words)
			}
		}
		if !own {
			t.Errorf("the examples of %s do not call it:\n%s", c.CommandPath(), c.Example)
		}
	})
	if seen < 120 || ran < 70 {
		t.Errorf("%d examples, of which %d ran", seen, ran)
	}
}

// tryExample checks one command line, and runs it without a server if it needs one. It returns the
// number of lines that ran.
func tryExample(t *testing.T, words []string) int {
	t.Helper()
	root := rootCommand(cli.Env{Getenv: func(string) string { return "" }})
	c, rest, err := root.Find(words)
	if err != nil || c == root {
		t.Errorf("pando %s: there is no such command (%v)", strings.Join(words, " "), err)
		return 0
	}
	path := strings.TrimPrefix(c.CommandPath(), "pando ")
	if c.DisableFlagParsing { // another program reads the flags
		return 0
	}
	err = c.ParseFlags(rest)
	if err == nil {
		err = c.ValidateArgs(c.Flags().Args())
	}
	if err != nil {
		t.Errorf("pando %s: %v", strings.Join(words, " "), err)
		return 0
	}
	if _, serves := lines[path]; !serves || c.Flags().Lookup("run-dir") != nil {
		return 0 // it would change this machine
	}
	// A file that an example only names is the reader's, and so is a terminal.
	got := invokeWith("name: a\ncommand: x\n", "/nowhere/api.sock", words...)
	theirs := got.code == 4 && strings.Contains(got.err, "there is no file") &&
		!strings.Contains(strings.Join(words, " "), "examples/")
	if got.code != 8 && !theirs && !strings.Contains(got.err, "standard input is no terminal") {
		t.Errorf("pando %s: code %d: %s", strings.Join(words, " "), got.code, got.err)
	}
	return 1
}
