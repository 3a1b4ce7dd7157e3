package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"pando.run/pando/cmd/pando/cli"
)

// readers are command lines with a file of the user, FILE. none: they fail before they reach a
// server or a privilege.
var readers = []string{
	"deploy FILE", "deploy --dry-run FILE", "spec check FILE", "convert FILE", "diff ./FILE.yaml",
	"run ./FILE.yaml -- ls", "image build FILE", "image build --file FILE", "secret set a --file FILE",
	"restore --data-dir DATA --run-dir DATA FILE", "lab play FILE",
	"backup --encrypt --passphrase-file FILE out", "restore --passphrase-file FILE out",
	"up --announce bgp --bgp-router 192.0.2.1=1 --bgp-password-file FILE --data-dir DATA --run-dir DATA",
	"up --store https://192.0.2.1:1 --store-ca FILE --data-dir DATA --run-dir DATA",
	"cp FILE web:/x",
}

// refusedWithoutRoot reports whether a command looked at nothing, because these tests run without
// root.
func refusedWithoutRoot(text string) bool {
	return os.Geteuid() != 0 && strings.Contains(text, "need root")
}

// A file that is not there, a folder and an empty file are named as such, with the next step.
func TestWrongFilesAreNamed(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"folder", "folder.yaml"} {
		if err := os.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"empty", "empty.yaml"} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range readers {
		for _, kind := range []string{"none", "folder", "empty"} {
			if strings.HasPrefix(line, "cp ") && kind != "none" {
				continue // a folder and an empty file are copied as well
			}
			file := strings.NewReplacer("FILE", kind, "DATA", filepath.Join(t.TempDir(), "data")).Replace
			got := invoke("/nowhere/api.sock", strings.Fields(file(line))...)
			if refusedWithoutRoot(got.err) {
				continue
			}
			says := map[string][]string{"none": {"there is no file", "no such file"},
				"folder": {"is a folder", "is a directory"},
				"empty":  {"is empty", "there is no service in", "would have no files"}}[kind]
			named := false
			for _, words := range says {
				named = named || strings.Contains(got.err, words)
			}
			name := kind
			if strings.Contains(line, "FILE.yaml") {
				name += ".yaml"
			}
			if got.code != 3 && got.code != 4 || !named || !strings.Contains(got.err, name) ||
				strings.Contains(got.err, "/restore-") || strings.Count(got.err, "\n") != 1 {
				t.Errorf("pando %s: code %d: %s", file(line), got.code, got.err)
			}
			if kind == "none" && !strings.ContainsAny(got.err, ";?") {
				t.Errorf("pando %s names no next step: %s", file(line), got.err)
			}
		}
	}
	if err := os.WriteFile("web.yaml", []byte("name: web\ncommand: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"wbe.yaml": "did you mean web.yaml?",
		"none/web.yaml": "there is no folder none"} {
		if got := invoke("", "deploy", file); got.code != 4 || !strings.Contains(got.err, want) {
			t.Errorf("deploy %s: %d %s, want %s", file, got.code, got.err, want)
		}
	}
}

// lines are command lines that need a server, for every command that does.
var lines = map[string]string{
	"audit": "", "bill": "", "cp": "web:/x FILE", "deploy": "SPEC", "diff": "web", "exec": "web -- ls",
	"history": "web", "hosts": "", "hosts allow": "h exec", "hosts deny": "h exec", "hosts drain": "h", "hosts undrain": "h", "hosts rm": "h",
	"image ls": "", "image pull": "a/b", "image rm": "a/b", "image show": "a/b", "logs": "web",
	"migrate": "web/web-1 --to host2", "port-forward": "web 80", "ps": "", "rebalance": "",
	"recover": "web --force-from web-0", "restart": "web", "restore": "web --from abc", "rm": "web",
	"rollback": "web", "rollout finish": "web --now", "rollout pause": "web", "rollout resume": "web",
	"rollout status": "web", "rollout undo": "web", "run": "web -- ls", "runs": "web", "runs end": "web 1",
	"scale": "web 1", "secret ls": "", "secret rm": "a", "secret set": "a --file SPEC", "snapshot": "web",
	"snapshot ls": "", "snapshot rm": "web abc", "spec show": "web", "state log": "web", "stats": "",
	"status": "", "tenant ls": "", "tenant rm": "acme", "tenant set": "acme", "tenant show": "acme",
	"tenant token add": "acme ci --may scale", "tenant token ls": "acme", "tenant token rm": "acme ci",
	"top": "web", "volume inspect": "web", "volume ls": "", "volume rm": "web data", "watch": "",
	"why": "web", "backup": "FILE --run-dir DATA", "servers add": "--run-dir DATA",
	"servers ls": "--run-dir DATA", "servers rm": "h --run-dir DATA", "token": "--run-dir DATA",
	"daemons restart": "--run-dir DATA",
}

// serverless are commands that need no server, with their subcommands.
var serverless = []string{"agent", "convert", "doctor", "down", "fn", "image build", "install", "lab",
	"mem", "server", "spec check", "spec schema", "uninstall", "up", "version"}

// Every command without a server says that none runs and what starts it, in one line.
func TestEveryCommandSaysThatNoServerRuns(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/a.yaml", "name: a\ncommand: x\n")
	walk(rootCommand(cli.Env{Getenv: func(string) string { return "" }}), func(c *cobra.Command) {
		path := strings.TrimPrefix(strings.TrimPrefix(c.CommandPath(), "pando"), " ")
		for _, s := range serverless {
			if path == s || strings.HasPrefix(path, s+" ") {
				return
			}
		}
		args, known := lines[path]
		if c.HasSubCommands() && !known {
			return // it prints its help
		}
		if !known {
			t.Errorf("pando %s is in no table: does it need a server?", path)
			return
		}
		line := strings.NewReplacer("FILE", dir+"/out", "SPEC", dir+"/a.yaml", "DATA", dir+"/data").
			Replace(path + " " + args)
		got := invoke("/nowhere/api.sock", strings.Fields(line)...)
		if refusedWithoutRoot(got.err) {
			return
		}
		if got.code != 8 || !strings.Contains(got.err, "`pando up`") || got.out != "" ||
			strings.Count(got.err, "\n") != 1 {
			t.Errorf("pando %s: code %d: %s%s", line, got.code, got.out, got.err)
		}
	})
	if _, err := os.Stat(dir + "/out"); err == nil {
		t.Error("a command that failed has written its file")
	}
}
