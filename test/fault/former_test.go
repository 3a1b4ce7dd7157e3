//go:build soak

package fault

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// former is a revision of the repository from before the first release. Once there are tags, the
// newest one is the former release.
const former = "6c963f57"

// A cluster of the former release is upgraded to this build under load, host by host. It is a soak,
// because it needs the history of the repository. PANDO_FORMER names another revision.
func TestAClusterOfTheFormerReleaseIsUpgraded(t *testing.T) {
	s := newSite(t, labtest.Options{Hosts: 2, Idle: true})
	now := s.Bin
	tag, _ := exec.Command("git", "describe", "--tags", "--abbrev=0", "HEAD^").Output()
	revision := cmp.Or(os.Getenv("PANDO_FORMER"), strings.TrimSpace(string(tag)), former)
	t.Logf("the former release is %s", revision)
	s.upgrade(buildOf(s, revision), now, pando.Layout)
}

// buildOf builds Pando from a revision of the repository.
func buildOf(s *site, revision string) string {
	s.Helper()
	at := filepath.Join(s.Dir, "former")
	if err := os.MkdirAll(at, 0o755); err != nil {
		s.Fatal(err)
	}
	for _, script := range []string{
		`git -C "$(git rev-parse --show-toplevel)" archive "$1" | tar -x -C "$0"`,
		`cd "$0" && CGO_ENABLED=0 go build -trimpath -o pando ./cmd/pando`,
	} {
		cmd := exec.Command("bash", "-o", "pipefail", "-ec", script, at, revision)
		if out, err := cmd.CombinedOutput(); err != nil {
			s.Fatalf("build of %s: %v\n%s", revision, err, out)
		}
	}
	return filepath.Join(at, "pando")
}
