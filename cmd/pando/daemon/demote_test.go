package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A store that root made, such as one of an earlier build or a restored one, becomes the server's.
func TestAStoreOfRootIsHandedOver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	store := filepath.Join(dir, "store")
	if err := handOver(store, serverUser); err != nil {
		t.Errorf("no store yet: %v", err)
	}
	outside := filepath.Join(dir, "outside")
	db := filepath.Join(store, "member", "snap", "db")
	link := filepath.Join(store, "link")
	for _, err := range []error{
		os.MkdirAll(filepath.Dir(db), 0o700), os.WriteFile(db, nil, 0o600),
		os.WriteFile(outside, nil, 0o600), os.Symlink(outside, link),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := handOver(store, serverUser); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]uint32{
		store: serverUser, filepath.Dir(db): serverUser, db: serverUser, link: serverUser, outside: 0,
	} {
		st, err := os.Lstat(path)
		if err != nil || st.Sys().(*syscall.Stat_t).Uid != want {
			t.Errorf("%s belongs to %d, %v", path, st.Sys().(*syscall.Stat_t).Uid, err)
		}
	}
}

// The unit of the server is fenced in. The agent mounts for its host, so its unit is not.
func TestTheUnitsBoundTheDaemons(t *testing.T) {
	p := place{folders: folders{Run: "/run/pando", Data: "/var/lib/pando"}}
	units := unitsOf(p, "/usr/bin/pando", []string{"server", "agent"}, nil)
	for n, want := range [][]string{
		{"ProtectSystem=strict", "NoNewPrivileges=yes", "MemoryMax=75%", "OOMScoreAdjust=-500",
			"ReadWritePaths=/var/lib/pando /run/pando",
			"CapabilityBoundingSet=CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_SETUID " +
				"CAP_SETGID CAP_SETPCAP"},
		{"OOMScoreAdjust=-900", "CapabilityBoundingSet=~CAP_SYS_MODULE "},
	} {
		text := units[n].Text()
		for _, line := range want {
			if !strings.Contains(text, "\n"+line) {
				t.Errorf("%s lacks %q:\n%s", units[n].Name, line, text)
			}
		}
	}
	if agent := units[1].Text(); strings.Contains(agent, "NoNewPrivileges") {
		t.Error("a setuid program of an image would have no effect in its own users")
	}
}
