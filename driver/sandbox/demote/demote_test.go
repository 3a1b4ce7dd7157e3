package demote

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// asProgram is set in the environment of this test binary when it stands for the program.
const asProgram = "PANDO_TEST_DEMOTED"

const user = 1_999_999_998

func TestMain(m *testing.M) {
	dir := os.Getenv(asProgram)
	switch {
	case dir == "":
		os.Exit(m.Run())
	case os.Geteuid() == 0:
		fmt.Println(Exec(Rights{User: user, Group: user, Folders: []string{dir},
			Capabilities: []int{unix.CAP_DAC_OVERRIDE, unix.CAP_CHOWN}},
			"/proc/self/exe", os.Args, os.Environ(), func(err error) { fmt.Println("warning:", err) }))
		os.Exit(1)
	default:
		program(dir)
	}
}

// program tries what a program with few rights may and may not do.
func program(dir string) {
	try := func(what string, err error) { fmt.Println(what+":", err == nil) }
	fmt.Println("user:", os.Geteuid(), os.Getegid(), os.Getpid())
	own := filepath.Join(dir, "own")
	try("write", os.WriteFile(filepath.Join(own, "a"), nil, 0o600))
	try("truncate", os.Truncate(filepath.Join(own, "root"), 0))
	try("rename", os.Rename(filepath.Join(own, "a"), filepath.Join(dir, "b")))
	try("chown", os.Chown(filepath.Join(dir, "b"), 5, 5))
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	try("null", err)
	null.Close()
	status, err := os.ReadFile("/proc/self/status")
	try("read", err)
	try("write outside", os.WriteFile(filepath.Dir(dir)+"/outside", nil, 0o600))
	try("replace outside", os.Rename(filepath.Join(dir, "b"), filepath.Dir(dir)+"/outside"))
	try("mount", unix.Mount("none", own, "tmpfs", 0, ""))
	try("become root", unix.Setuid(0))
	try("signal root", unix.Kill(os.Getppid(), 0))
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "Cap") || strings.HasPrefix(line, "NoNewPrivs") {
			fmt.Print(strings.Join(strings.Fields(line), " "), "\n")
		}
	}
}

func TestAProgramKeepsTheRightsThatItIsGiven(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.MkdirAll(filepath.Join(dir, "own"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "own", "root"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), asProgram+"="+dir)
	out, err := c.CombinedOutput()
	said := string(out)
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if strings.Contains(said, ErrNoLandlock.Error()) {
		t.Skip("needs Landlock: " + said)
	}
	caps := fmt.Sprintf("%016x", 1<<unix.CAP_DAC_OVERRIDE|1<<unix.CAP_CHOWN)
	for _, want := range []string{
		fmt.Sprintf("user: %d %[1]d %d", user, c.Process.Pid), "write: true", "truncate: true",
		"rename: true", "chown: true", "null: true", "read: true", "write outside: false",
		"replace outside: false", "mount: false", "become root: false", "signal root: false",
		"CapPrm: " + caps, "CapEff: " + caps, "CapBnd: " + caps, "NoNewPrivs: 1",
	} {
		if !strings.Contains(said, want+"\n") {
			t.Errorf("want %q in\n%s", want, said)
		}
	}
}
