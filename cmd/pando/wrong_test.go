package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando/cmd/pando/cli"
)

// A command of another tool gets the command of Pando, and every such answer names one that exists.
func TestCommandsOfOtherToolsGetTheCommandOfPando(t *testing.T) {
	for line, want := range map[string]string{
		"apply -f x.yaml": "`pando deploy FILE.yaml`", "get pods": "`pando ps`",
		"get pods -A": "`pando ps`", "get ingresses": "`pando status`",
		"job run web.nomad": "`pando deploy FILE.yaml`", "rollout restart web": "`pando restart SERVICE`",
		"alloc restart 1f2e": "`pando restart SERVICE INSTANCE`", "describe pod web": "`pando why SERVICE`",
		"stop web": "`pando scale SERVICE 0`",
	} {
		var said strings.Builder
		code := run(strings.Fields(line), cli.Env{Stdout: &said, Stderr: &said,
			Getenv: func(string) string { return "" }})
		if code != 2 || !strings.Contains(said.String(), want) {
			t.Errorf("pando %s: code %d, %s", line, code, said.String())
		}
	}
	var said strings.Builder // a flag of no command is still one
	run([]string{"--bogus"}, cli.Env{Stdout: &said, Stderr: &said,
		Getenv: func(string) string { return "" }})
	if !strings.Contains(said.String(), "bogus") {
		t.Errorf("pando --bogus says %q", said.String())
	}
	root := rootCommand(cli.Env{Getenv: func(string) string { return "" }})
	for from, to := range otherVerbs {
		for _, one := range strings.Split(to, "; ") {
			words := strings.Fields(one)
			if words[0] != "pando" {
				continue
			}
			if c, _, err := root.Find(words[1:]); err != nil || c == root {
				t.Errorf("%s: there is no command %q (%v)", from, one, err)
			}
		}
	}
}

// A check takes what a deploy takes: a Compose file, and the standard input.
func TestSpecCheckTakesWhatDeployTakes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "compose.yaml")
	text := "name: shop\nservices: {web: {image: nginx, command: [nginx], restart: always}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string]string{
		file: "", "-": "name: web\ncommand: [sleep, inf]\n",
	} {
		var said strings.Builder
		code := run([]string{"spec", "check", name}, cli.Env{Stdin: strings.NewReader(in), Stdout: &said,
			Stderr: &said, Getenv: func(string) string { return "" }})
		if code != 0 || !strings.Contains(said.String(), "web is good") {
			t.Errorf("spec check %s: code %d, %s", name, code, said.String())
		}
	}
}
