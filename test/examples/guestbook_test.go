package examples

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// TestGuestbook builds three images from packages of this machine and deploys their Compose file.
// The count outlives its database, which is killed.
func TestGuestbook(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	dir := filepath.Join(p.Dir, "guestbook")
	if err := os.CopyFS(dir, os.DirFS("../../examples/guestbook")); err != nil {
		t.Fatal(err)
	}
	for _, image := range []string{"front", "page", "db"} {
		p.Pando("image", "build", filepath.Join(dir, image, "image.yaml"))
	}
	p.Pando("deploy", "--wait", filepath.Join(dir, "compose.yaml"))
	key := pando.ServiceKey{Tenant: "guestbook", Name: "front"}
	front, err := p.API(p.Host()).Service(p.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	visit := func() string {
		out := p.Run(labtest.Client, "curl", "-sS", "-m", "10", "http://"+front.VIP+":8080")
		return strings.TrimSpace(out.Text)
	}
	for n := 1; n <= 5; n++ {
		if got, want := visit(), fmt.Sprintf("visitor %d", n); got != want {
			t.Fatalf("the page answers %q, want %q", got, want)
		}
	}
	// The command may end together with the instance, before its exit code arrives.
	p.Run(p.Host(), p.Bin, "exec", "guestbook/db", "--", "redis-cli", "shutdown", "nosave")
	p.Await("the next visitor", func() (string, bool) {
		got := visit()
		return got, got == "visitor 6"
	})
}
