package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"pando.run/pando/cmd/pando/cli"
)

// writers are the command lines that write a file of the user's choice, by their command. FILE is
// the file.
var writers = map[string]string{
	"pando backup":      "backup FILE",
	"pando cp":          "cp web:/etc/hosts FILE",
	"pando image build": "image build --tar FILE RECIPE",
}

// No command writes over a file that Pando did not write, or touches a file beside it.
func TestNoCommandReplacesAFileOfAnother(t *testing.T) {
	for command, line := range writers {
		dir := t.TempDir()
		file, recipe := filepath.Join(dir, "diary"), filepath.Join(dir, "image.yaml")
		writeFile(t, recipe, "files: {image.yaml: /a}\ncommand: [/a]\n")
		mine := []string{file, file + ".new", file + ".part", file + ".tmp", file + "~"}
		for _, name := range mine {
			writeFile(t, name, "monday")
		}
		line = strings.NewReplacer("FILE", file, "RECIPE", recipe).Replace(line)
		got := invoke("/nowhere/api.sock", strings.Fields(line)...)
		if got.code != 6 || !strings.Contains(got.err, "diary is there") ||
			!strings.Contains(got.err, "--force") {
			t.Errorf("%s: code %d: %s", command, got.code, got.err)
		}
		if forced := invoke("/nowhere/api.sock", append(strings.Fields(line), "--force")...); strings.
			Contains(forced.err, "is there") {
			t.Errorf("%s --force: code %d: %s", command, forced.code, forced.err)
		}
		for n, name := range mine {
			if n == 0 && command == "pando image build" {
				continue // it was forced
			}
			if text, err := os.ReadFile(name); err != nil || string(text) != "monday" {
				t.Errorf("%s: %s is %q now, %v", command, name, text, err)
			}
		}
	}
}

// A command with --force writes files or takes something away. The first ones are in the table.
func TestEachWriterIsInTheTable(t *testing.T) {
	removers := map[string]bool{"pando hosts rm": true, "pando down": true}
	walk(rootCommand(cli.Env{Getenv: func(string) string { return "" }}), func(c *cobra.Command) {
		path := c.CommandPath()
		forced := c.Flags().Lookup("force") != nil
		if forced != (writers[path] != "" || removers[path]) {
			t.Errorf("%s has --force: %t; is it in the table of commands that write files?", path, forced)
		}
	})
}
