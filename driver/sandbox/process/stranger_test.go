package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// stranger asks a shim to stop its sandbox and prints the outcome.
const stranger = `
import json, socket, struct, sys
s = socket.socket(socket.AF_UNIX); s.settimeout(10)
try: s.connect(sys.argv[1])
except PermissionError: print("refused"); sys.exit()
b = json.dumps({"verb": "notify"}).encode()
try:
    s.sendall(struct.pack(">I", len(b)) + b); print("answered" if s.recv(100) else "closed")
except (BrokenPipeError, ConnectionResetError): print("closed")
`

// The agent may have any umask. A process that commands a shim runs programs as root.
func TestRootAloneCommandsAShim(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	d := newDriver(t, 0)
	// Each parent folder is open to everyone, as /run is.
	for dir := filepath.Dir(d.RunDir); strings.HasPrefix(dir,
		os.TempDir()+"/"); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s, err := d.pool.claim()
	if err != nil {
		t.Fatal(err)
	}
	defer s.destroy()
	for path, want := range map[string]os.FileMode{s.dir: 0o700, s.self(): 0o711, s.control(): 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: mode %v (%v), want %v", path, st.Mode().Perm(), err, want)
		}
	}
	asks := func(uid uint32) string {
		c := exec.Command("/usr/bin/python3", "-c", stranger, s.control())
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if got := asks(0); got != "answered" {
		t.Fatalf("root: %s", got)
	}
	if got := asks(65534); got != "refused" {
		t.Errorf("a stranger: %s", got)
	}
	if err := os.Chmod(s.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(s.control(), 0o777); err != nil {
		t.Fatal(err)
	}
	if got := asks(65534); got != "closed" {
		t.Errorf("a stranger at an open socket: %s", got)
	}
	if b := run(t, d, nil, "sleep", "60"); b.Instance() == pando.InstanceID("") {
		t.Error("nothing runs")
	}
}
