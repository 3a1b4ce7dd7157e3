package image

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"pando.run/pando"
)

// An image of a registry is never a snapshot, whatever its labels say, and it displaces none.
func TestALabelMakesNoSnapshot(t *testing.T) {
	clean(t)
	r := served(t, nil)
	s := Snapshots{Store: open(t)}
	genuine := keep(t, s, "memory")
	for label, want := range map[string]error{"run.pando.snapshot": pando.ErrRefused,
		"run.pando.x": pando.ErrRefused, "com.example.run.pando": nil} {
		img, err := random.Image(1<<10, 1)
		if err != nil {
			t.Fatal(err)
		}
		c := configFor(t, img, "amd64")
		text, _ := json.Marshal(pando.SnapshotStatus{Service: genuine.Service, Instance: "game-forge",
			Seed: true, At: time.Now().Add(24 * 365 * time.Hour)})
		c.Config.Labels = map[string]string{label: string(text)}
		if img, err = mutate.ConfigFile(img, c); err != nil {
			t.Fatal(err)
		}
		reference := strings.TrimPrefix(r.URL, "http://") + "/evil/x:" + strings.ReplaceAll(label, ".", "-")
		write(t, r, reference, img)
		_, _, err = s.Resolve(t.Context(), "acme", inside(reference))
		if !errors.Is(err, want) || want != nil && !strings.Contains(err.Error(), label) {
			t.Errorf("%s is deployed: %v, want %v", label, err, want)
		}
		top, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		err = s.Pull(t.Context(), pando.Image{Reference: reference, Digest: top.String(), Inside: true}, nil)
		if !errors.Is(err, want) {
			t.Errorf("%s is pulled: %v, want %v", label, err, want)
		}
		all, err := s.Kept(pando.ServiceKey{})
		if err != nil || len(all) != 1 || all[0].Digest != genuine.Digest {
			t.Errorf("%s: the snapshots are %+v, %v", label, all, err)
		}
		_, done, err := s.Open(t.Context(), genuine.Service, top.String(), givesKey("key"))
		done()
		if !errors.Is(err, pando.ErrForbidden) {
			t.Errorf("an instance continues %s: %v", label, err)
		}
	}
	other := pando.DefaultService("other")
	_, _, err := s.Open(t.Context(), other, genuine.Digest, givesKey("key"))
	if !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("another service continues it: %v", err)
	}
}

// A copy with any time displaces no snapshot that this host took.
func TestACopyDisplacesNoSnapshotOfThisHost(t *testing.T) {
	s := Snapshots{Store: open(t)}
	first := keep(t, s, "first")
	for n := range pando.SnapshotsMax + 2 {
		one := keep(t, s, "copy "+string(rune('a'+n)))
		one.Host, one.At = "host2", time.Now().Add(time.Hour)
		top, err := digest(one.Digest)
		if err == nil {
			err = s.describeSnapshot(top, one)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	last := keep(t, s, "last")
	all, err := s.Kept(first.Service)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []pando.SealedSnapshot{first, last} {
		if !slices.Contains(all, want) {
			t.Errorf("%s is gone: %+v", want.Digest, all)
		}
	}
}

// A digest is no secret and no right. The registry of an image decides who may read it.
func TestADigestOfAnotherTenantOpensNothing(t *testing.T) {
	clean(t)
	var asked atomic.Int64
	closed := false
	r := served(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if strings.Contains(q.URL.Path, "/manifests/") && q.Method == http.MethodGet {
				asked.Add(1)
				if closed {
					http.Error(w, "no", http.StatusForbidden)
					return
				}
			}
			next.ServeHTTP(w, q)
		})
	})
	s := open(t)
	reference, img := push(t, r, "v1")
	top, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Resolve(t.Context(), "bank", inside(reference)); err != nil {
		t.Fatal(err)
	}
	closed = true
	repository := strings.TrimSuffix(reference, ":v1")
	pinned := inside(repository + "@" + top.String())
	nobody := inside("127.0.0.1:1/none@" + top.String())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, i := range []pando.Image{pinned, nobody} {
		if _, _, err := s.Resolve(ctx, "acme", i); err == nil {
			t.Errorf("acme has the image of bank as %s", i.Reference)
		}
	}
	// Who was admitted once needs no registry, and neither does an operator.
	before := asked.Load()
	for _, by := range []pando.Tenant{"bank", ""} {
		if _, _, err := s.Resolve(ctx, by, pinned); err != nil {
			t.Errorf("%q: %v", by, err)
		}
	}
	if _, _, err := s.Resolve(ctx, "bank", nobody); err == nil {
		t.Error("another repository counts as the one that admitted bank")
	}
	if asked.Load() != before {
		t.Error("the registry was asked again")
	}
	closed = false
	if _, _, err := s.Resolve(ctx, "acme", pinned); err != nil {
		t.Errorf("the registry admits acme: %v", err)
	}
	closed = true
	if _, _, err := s.Resolve(ctx, "acme", pinned); err != nil {
		t.Errorf("acme was admitted: %v", err)
	}
}

// The memory of a program is no image of a service.
func TestASnapshotIsDeployedByNobody(t *testing.T) {
	s := Snapshots{Store: open(t)}
	st := keep(t, s, "memory")
	for _, by := range []pando.Tenant{"acme", ""} {
		_, _, err := s.Resolve(t.Context(), by, pando.Image{Reference: "127.0.0.1:1/x", Digest: st.Digest, Inside: true})
		if !errors.Is(err, pando.ErrRefused) {
			t.Errorf("%q: %v", by, err)
		}
	}
}

// A host gets the blobs of the image that it may have, and no others.
func TestABlobIsOfItsImage(t *testing.T) {
	s := Snapshots{Store: open(t)}
	a, b := keep(t, s, "one"), keep(t, s, "two")
	layer := func(st pando.SealedSnapshot) string {
		top, err := digest(st.Digest)
		if err != nil {
			t.Fatal(err)
		}
		k, err := s.look(top)
		if err != nil {
			t.Fatal(err)
		}
		return k.manifest.Layers[0].Digest.String()
	}
	f, err := s.Blob(a.Digest, layer(a))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(f)
	if f.Close(); err != nil || !strings.Contains(string(text), "one") {
		t.Errorf("its layer: %d bytes, %v", len(text), err)
	}
	if _, err := s.Blob(a.Digest, layer(b)); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("the layer of another image: %v", err)
	}
	if _, err := s.Blob(a.Digest, b.Digest); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("another image: %v", err)
	}
}

// A description goes with its snapshot.
func TestADescriptionGoesWithItsSnapshot(t *testing.T) {
	s := Snapshots{Store: open(t)}
	st := keep(t, s, "memory")
	if err := s.Drop(t.Context(), st.Service, st.Digest); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Join(s.Dir, "snapshots"))
	if err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
