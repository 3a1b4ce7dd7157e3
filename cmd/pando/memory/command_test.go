package memory

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// replace makes the test binary run `pando mem` with the arguments in this variable.
const replace = "PANDO_TEST_MEM"

func TestMain(m *testing.M) {
	if args, ok := os.LookupEnv(replace); ok {
		c := Command()
		c.SetArgs(strings.Fields(args))
		c.SilenceErrors, c.SilenceUsage = true, true
		if err := c.Execute(); err != nil {
			println(err.Error())
			os.Exit(9)
		}
	}
	os.Exit(m.Run())
}

// mem runs `pando mem` in a process of its own.
func mem(t *testing.T, path, args string) (out string, pid int, code int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self)
	c.Env = append(os.Environ(), replace+"="+args, "PATH="+path)
	text, err := c.CombinedOutput()
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		t.Fatal(err)
	}
	return string(text), c.Process.Pid, c.ProcessState.ExitCode()
}

// A borrower keeps the pid of `pando mem`, and pando-mem gets every argument, flags included.
func TestMemBecomesPandoMem(t *testing.T) {
	dir := t.TempDir()
	program := "#!/bin/sh\necho $$ \"$*\"\nexit 42\n"
	if err := os.WriteFile(dir+"/"+binary, []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	out, pid, code := mem(t, dir+":"+os.Getenv("PATH"), "run --help -- redis-server -x")
	own, args, _ := strings.Cut(strings.TrimSpace(out), " ")
	if args != "run --help -- redis-server -x" || code != 42 {
		t.Errorf("pando-mem got %q and ended with %d", args, code)
	}
	if own != strconv.Itoa(pid) {
		t.Errorf("pando-mem is process %s, and `pando mem` was %d", own, pid)
	}
}

func TestMissingPandoMemIsNamed(t *testing.T) {
	if out, _, code := mem(t, t.TempDir(), "top"); code != 9 || !strings.Contains(out, "make build") {
		t.Errorf("code %d: %s", code, out)
	}
}
