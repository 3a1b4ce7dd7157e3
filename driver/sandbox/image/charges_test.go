package image

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
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

// One tenant that names an image by many references, or asks many repositories for it, pushes out no
// name and no admission of another tenant.
func TestTheRecordOfAnImageHasAShareForEachTenant(t *testing.T) {
	s, h := open(t), v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("a", 64)}
	add := func(of pando.Tenant, n int) {
		t.Helper()
		repository := fmt.Sprintf("r.example/%s/%d", of, n)
		if err := errors.Join(s.remember(h, of, repository+":v1"), s.admit(h, of, repository)); err != nil {
			t.Fatal(err)
		}
	}
	add("bank", 0)
	// A reference that both use is of both: acme named it first, and forgets it alone.
	const both = "r.example/library/web:v1"
	if err := errors.Join(s.remember(h, "acme", both), s.remember(h, "bank", both)); err != nil {
		t.Fatal(err)
	}
	full := s.recalled(h)
	for n := range admissionsMax {
		one := fmt.Sprintf("r.example/acme/%d", n)
		full.Admitted = append(full.Admitted, admission{"acme", one})
		if n < namesMax {
			full.Names = append(full.Names, naming{"acme", one})
		}
	}
	if err := s.write(h, full); err != nil {
		t.Fatal(err)
	}
	add("acme", admissionsMax)
	r := s.recalled(h)
	if len(r.Admitted) != admissionsMax || len(r.Names) != namesMax {
		t.Fatalf("%d admissions and %d names: the bounds are not full", len(r.Admitted), len(r.Names))
	}
	if !r.admits("bank", "r.example/bank/0") || !slices.Contains(r.references(), "r.example/bank/0:v1") ||
		!slices.Contains(r.references(), both) {
		t.Error("a flood of acme pushed out bank")
	}
}

// Over its bytes, the store gives up the unused images of the tenant with the most, although another
// tenant's image rests longer.
func TestTheSweepTakesFromTheTenantWithTheMost(t *testing.T) {
	clean(t)
	r, s := served(t, nil), open(t)
	var brought []string // the longest unused first
	for n, of := range []pando.Tenant{"bank", "acme", "acme"} {
		reference, _ := push(t, r, fmt.Sprint("v", n))
		i, _, err := s.Resolve(t.Context(), "", inside(reference))
		if err != nil {
			t.Fatal(err)
		}
		i.For, i.Prove = of, true
		if err := s.Pull(t.Context(), i, nil); err != nil {
			t.Fatal(err)
		}
		top, _ := digest(i.Digest)
		at := time.Now().Add(time.Duration(n-10) * time.Hour)
		if err := os.Chtimes(s.record(top), at, at); err != nil {
			t.Fatal(err)
		}
		brought = append(brought, i.Digest)
	}
	gone, err := s.Sweep(t.Context(), nil, Bounds{Age: 24 * time.Hour, Bytes: s.bytes() - 1})
	if err != nil || !slices.Equal(gone, brought[1:2]) {
		t.Errorf("the sweep removes %q (%v), want the older image of acme, %q", gone, err, brought[1])
	}
}
