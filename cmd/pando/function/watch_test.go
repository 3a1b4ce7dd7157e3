package function

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando/cmd/pando/cli"
)

// watched watches children that run these shell commands, one after the other, in a folder. It
// returns its output and its error.
func watched(t *testing.T, commands ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, log bytes.Buffer
	folder := t.TempDir()
	group := func() *exec.Cmd {
		if len(commands) == 0 {
			t.Fatal("a group was started again")
		}
		child := exec.Command("sh", "-c", commands[0])
		child.Dir, commands = folder, commands[1:]
		return child
	}
	err = unit{cli.Env{Stdout: &out, Stderr: &log}}.watch(t.Context(), folder, group)
	if len(commands) > 0 {
		t.Errorf("%d groups were not started", len(commands))
	}
	return out.String(), log.String(), err
}

func TestAKilledGroupIsStartedAgain(t *testing.T) {
	const killed = "echo serves; kill -9 $$"
	stdout, stderr, err := watched(t, killed, killed, "echo serves; exit 7")
	if stdout != "serves\n" || cli.CodeOf(err) != 7 ||
		strings.Count(stderr, "the group ended (signal: killed) and is started again") != 2 {
		t.Errorf("printed %q and %q, ended with %v", stdout, stderr, err)
	}
}

func TestAGroupThatEndsIsNotStartedAgain(t *testing.T) {
	if _, _, err := watched(t, "echo serves"); err != nil {
		t.Error(err)
	}
	if _, _, err := watched(t, "echo serves; rm watched; kill -9 $$"); err == nil {
		t.Error("a group that was removed ended without an error")
	}
	if _, _, err := watched(t, "kill -9 $$"); err == nil {
		t.Error("a group that never served ended without an error")
	}
}

// `pando fn rm` removes the file by this name.
func TestTheFileOfAWatchedGroupIsTheOneThatRmRemoves(t *testing.T) {
	path := filepath.Join("..", "..", "..", "function", "unit", "src", "command", "places.rs")
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), `directory.join("`+watchedFile+`")`) {
		t.Errorf("%s does not remove %s: %v", path, watchedFile, err)
	}
}
