package daemon

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
)

// deaf is the variable with the signals that this program ignores when a test runs it as a daemon.
const deaf = "PANDO_TEST_DEAF"

func TestMain(m *testing.M) {
	if left, err := strconv.Atoi(os.Getenv(restless)); err == nil {
		execAgain(left)
	}
	if signals, ok := os.LookupEnv(deaf); ok {
		signal.Ignore(syscall.SIGTERM)
		if signals == "TERM QUIT" {
			signal.Ignore(syscall.SIGQUIT)
		}
		fmt.Println("deaf")
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes the pipe
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// deafServer starts a server that ignores the request to end.
func deafServer(t *testing.T, signals string) place {
	t.Helper()
	p := place{folders: folders{Run: t.TempDir(), Data: t.TempDir()}, Host: "h1"}
	if err := os.MkdirAll(p.logs(), 0o755); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(daemonLog(p, "server"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := exec.Command(self, "server")
	server.Env, server.Stderr = append(os.Environ(), deaf+"="+signals), log
	holds, err := server.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	says, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		holds.Close()
		_ = server.Wait()
	})
	if line, err := bufio.NewReader(says).ReadString('\n'); err != nil || line != "deaf\n" {
		t.Fatalf("the server answered %q, %v", line, err)
	}
	writeFile(t, pidFile(p, "server"), fmt.Sprint(server.Process.Pid))
	return p
}

func TestADaemonThatDoesNotEndIsEndedByForce(t *testing.T) {
	for signals, logsGo := range map[string]bool{"TERM": false, "TERM QUIT": true} {
		t.Run(signals, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			p := deafServer(t, signals)
			// Effective signals get all the time of a busy machine; ignored signals get none.
			requests := slices.Clone(asking)
			for n := range requests {
				if requests[n].within = time.Minute; n <= strings.Count(signals, " ") {
					requests[n].within = pando.WaitToldAfter + 300*time.Millisecond
				}
			}
			var said strings.Builder
			m := machine{&cli.Output{Env: cli.Env{Stderr: &said}}}
			forced, err := endDaemon(t.Context(), m, p, "server", requests, logsGo)
			if err != nil || !forced {
				t.Fatalf("forced: %v: %v", forced, err)
			}
			if _, alive := daemon(p, "server"); alive {
				t.Error("it lives")
			}
			if !strings.Contains(said.String(), "was killed") ||
				!strings.HasPrefix(said.String(), "waits for the end of the server (process ") {
				t.Errorf("said: %q", said.String())
			}
			_, path, _ := strings.Cut(strings.TrimSpace(said.String()), "its stacks are in ")
			if logsGo != (filepath.Dir(path) == os.Getenv("TMPDIR")) {
				t.Errorf("with the log's folder gone: %v, the log is %s", logsGo, path)
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			stacks := strings.Contains(string(text), "goroutine 1")
			if stacks == strings.Contains(signals, "QUIT") {
				t.Errorf("deaf to %s, its log is: %.200s", signals, text)
			}
		})
	}
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
