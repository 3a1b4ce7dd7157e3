package image

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"pando.run/pando"
)

// liar is a registry of a tenant. It sends what the test gives it by digest or tag, and nothing
// else, whatever its manifests name.
type liar struct {
	*testing.T
	at string
	mu sync.Mutex
	of map[string][]byte
}

func newLiar(t *testing.T) *liar {
	h := &liar{T: t, of: map[string][]byte{}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		parts := strings.Split(q.URL.Path, "/")
		b, ok := h.of[parts[len(parts)-1]]
		if q.URL.Path != "/v2/" && !ok {
			http.NotFound(w, q)
			return
		}
		_, _ = w.Write(b)
	}))
	t.Cleanup(s.Close)
	h.at = strings.TrimPrefix(s.URL, "http://") + "/evil/x:"
	return h
}

// put gives the registry bytes, also by a tag, and returns their descriptor.
func (h *liar) put(tag string, kind types.MediaType, b []byte) v1.Descriptor {
	h.mu.Lock()
	defer h.mu.Unlock()
	sum := hash(b)
	h.of[sum.String()] = b
	if tag != "" {
		h.of[tag] = b
	}
	return v1.Descriptor{MediaType: kind, Digest: sum, Size: int64(len(b))}
}

func (h *liar) json(tag string, kind types.MediaType, v any) v1.Descriptor {
	b, err := json.Marshal(v)
	if err != nil {
		h.Fatal(err)
	}
	return h.put(tag, kind, b)
}

// image is one whose layers the registry may lack.
func (h *liar) image(tag string, config v1.Descriptor, layers ...v1.Descriptor) {
	h.json(tag, types.OCIManifestSchema1, v1.Manifest{SchemaVersion: 2,
		MediaType: types.OCIManifestSchema1, Config: config, Layers: layers})
}

func (h *liar) config(files ...v1.Hash) v1.Descriptor {
	c := v1.ConfigFile{OS: "linux", Architecture: "amd64", RootFS: v1.RootFS{Type: "layers", DiffIDs: files}}
	return h.json("", types.OCIConfigJSON, c)
}

// layer returns the bytes of a layer of its own.
func (h *liar) layer() []byte {
	own, err := random.Layer(1<<10, types.OCILayer)
	if err != nil {
		h.Fatal(err)
	}
	packed, err := own.Compressed()
	if err != nil {
		h.Fatal(err)
	}
	b, err := io.ReadAll(packed)
	if err != nil {
		h.Fatal(err)
	}
	return b
}

// A manifest that names a blob of another tenant opens nothing: the registry of the manifest has to
// send the blob itself.
func TestAManifestOfABlobOfAnotherTenantOpensNothing(t *testing.T) {
	clean(t)
	r := served(t, nil)
	s := open(t)
	reference, img := push(t, r, "v1")
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := img.RawManifest()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	i, _, err := s.Resolve(t.Context(), "bank", inside(reference))
	if err != nil {
		t.Fatal(err)
	}
	i.Prove = true
	if err := s.Pull(t.Context(), i, nil); err != nil || !s.Proven(i) {
		t.Fatalf("the image of bank: %v, proven %v", err, s.Proven(i))
	}
	h := newLiar(t)
	secret, files := m.Layers[0], config.RootFS.DiffIDs[0]
	h.image("layer", h.config(files), secret)
	h.image("config", m.Config, m.Layers...)
	h.put("same", types.OCIManifestSchema1, raw)
	h.image("files", h.config(files), h.put("", types.OCILayer, h.layer())) // its own blob, and bank's files
	bare := *m
	h.json("index", types.OCIImageIndex, v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex,
		Manifests: []v1.Descriptor{{MediaType: bare.MediaType, Digest: hash(raw), Size: int64(len(raw))}}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, tag := range []string{"layer", "config", "same", "files", "index"} {
		got, _, err := s.Resolve(ctx, "acme", inside(h.at+tag))
		if err == nil {
			got.Prove = true
			err = s.Pull(ctx, got, nil)
		}
		if err == nil || ctx.Err() != nil {
			t.Errorf("%s: acme has a blob of bank: %v", tag, err)
		}
		if got = (pando.Image{Reference: h.at + tag, Digest: got.Digest}); got.Digest == "" {
			got.Digest = hash(h.of[tag]).String()
		}
		if s.Proven(got) {
			t.Errorf("%s is proven", tag)
		}
		for _, lent := range []string{secret.Digest.String(), m.Config.Digest.String()} {
			if f, err := s.Blob(got.Digest, lent); err == nil && got.Digest != i.Digest {
				f.Close()
				t.Errorf("%s: another host gets %s", tag, lent)
			}
		}
	}
	if err := s.Pull(ctx, i, nil); err != nil || !s.Proven(i) {
		t.Errorf("afterwards, the image of bank: %v, proven %v", err, s.Proven(i))
	}
}

// A registry that has the blobs proves it once. Later images of the same repository need no proof of
// the same blobs, and an operator's image needs none at all.
func TestARepositoryProvesABlobOnce(t *testing.T) {
	clean(t)
	sent := map[string]int{}
	var mu sync.Mutex
	r := served(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if strings.Contains(q.URL.Path, "/blobs/sha256:") && q.Method == http.MethodGet {
				mu.Lock()
				sent[strings.Split(q.URL.Path, "/")[3]]++ // acme/web → web
				mu.Unlock()
			}
			next.ServeHTTP(w, q)
		})
	})
	s := open(t)
	reference, img := push(t, r, "v1")
	others := strings.Replace(reference, "/shop/web:v1", "/shop/other:v1", 1)
	write(t, r, others, img)
	bring := func(by pando.Tenant, reference string, prove bool) {
		t.Helper()
		i, _, err := s.Resolve(t.Context(), by, inside(reference))
		if err == nil {
			i.Prove = prove
			err = s.Pull(t.Context(), i, nil)
		}
		if err != nil || prove && !s.Proven(i) {
			t.Fatalf("%s of %s: %v", reference, by, err)
		}
	}
	count := func(when string, web, other int) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if sent["web"] != web || sent["other"] != other {
			t.Errorf("%s: web sent %d blobs and other %d, want %d and %d", when, sent["web"], sent["other"], web, other)
		}
	}
	bring("bank", reference, true)
	count("first", 4, 0) // three layers and a configuration
	bring("", others, false)
	count("an operator's", 4, 0)
	bring("acme", others, true)
	count("another repository", 4, 4)
	bring("acme", others, true)
	bring("bank", reference, true)
	count("again", 4, 4)
	left, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range left {
		d, _ := l.DiffID()
		if !s.unpacked(d) {
			t.Errorf("layer %s is gone", d)
		}
	}
	if err := errors.Join(s.Remove(t.Context(), mustDigest(t, img))); err != nil {
		t.Fatal(err)
	}
	bring("bank", reference, true)
	count("after its removal", 8, 4)
}

func mustDigest(t *testing.T, img v1.Image) string {
	t.Helper()
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}
