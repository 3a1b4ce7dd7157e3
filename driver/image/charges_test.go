package image

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// keepFree lets operators alone take more of the disk.
func keepFree(t *testing.T, s *Store) {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(s.Dir, &st); err != nil {
		t.Fatal(err)
	}
	s.FreeMin = int64(st.Bavail) * st.Bsize * 2 / 3
}

// The images of one tenant leave room on a host to another tenant and to operators. Those that nothing
// uses go when their tenant has half of its share.
func TestImagesHaveAShareForEachTenant(t *testing.T) {
	clean(t)
	r, s := served(t, nil), open(t)
	s.TenantBytes = 15 << 20 // an image has 3 MiB, packed and unpacked
	n := 0
	bring := func(of pando.Tenant) error {
		t.Helper()
		n++
		reference, _ := push(t, r, fmt.Sprint("v", n))
		i, _, err := s.Resolve(t.Context(), "", inside(reference))
		if err != nil {
			t.Fatal(err)
		}
		i.For, i.Prove = of, of != pando.DefaultTenant
		return s.Pull(t.Context(), i, nil)
	}
	for range 2 {
		if err := bring("acme"); err != nil {
			t.Fatal(err)
		}
	}
	err := bring("acme")
	if !errors.Is(err, pando.ErrStoreFull) || !strings.Contains(err.Error(), "the images of tenant acme have 12 MiB on this host, of at most 15") {
		t.Errorf("a third image of acme: %v", err)
	}
	for _, other := range []pando.Tenant{"bank", pando.DefaultTenant, pando.DefaultTenant, pando.DefaultTenant} {
		if err := bring(other); err != nil {
			t.Errorf("an image of %s: %v", other, err)
		}
	}
	keepFree(t, s)
	if err := bring("coop"); !errors.Is(err, pando.ErrStoreFull) || !strings.Contains(err.Error(), "of tenant coop") {
		t.Errorf("an image of a tenant takes the reserve of operators: %v", err)
	}
	if err := bring(pando.DefaultTenant); err != nil {
		t.Errorf("an image of operators beside a full disk: %v", err)
	}
	s.FreeMin = 0
	records, err := os.ReadDir(s.records())
	if err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-2 * lately)
	for _, e := range records {
		if err := os.Chtimes(s.records()+"/"+e.Name(), long, long); err != nil {
			t.Fatal(err)
		}
	}
	gone, err := s.Sweep(t.Context(), nil, Bounds{Age: 24 * time.Hour, Bytes: 1 << 40})
	if err != nil || len(gone) != 1 {
		t.Errorf("the sweep removes %q (%v), want one image of acme", gone, err)
	}
	if err := bring("acme"); err != nil {
		t.Errorf("after the sweep: %v", err)
	}
}
