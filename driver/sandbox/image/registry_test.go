package image

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	server "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"pando.run/pando"
)

// served starts a registry behind a handler that may change its answers.
func served(t *testing.T, change func(http.Handler) http.Handler) *httptest.Server {
	t.Helper()
	h := server.New(server.Logger(log.New(io.Discard, "", 0)))
	if change != nil {
		h = change(h)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// inside is an image that an operator deploys: the registries of these tests are on this host.
func inside(reference string) pando.Image {
	return pando.Image{Reference: reference, Inside: true}
}

// listed returns a list of registries.
func listed(t *testing.T, lines string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "registries")
	if err := os.WriteFile(file, []byte(lines), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// push puts an image with large random layers into a registry, and returns its reference.
func push(t *testing.T, s *httptest.Server, tag string) (reference string, img v1.Image) {
	t.Helper()
	img, err := random.Image(1<<20, 3)
	if err == nil {
		img, err = mutate.ConfigFile(img, configFor(t, img, "amd64"))
	}
	if err != nil {
		t.Fatal(err)
	}
	reference = strings.TrimPrefix(s.URL, "http://") + "/shop/web:" + tag
	write(t, s, reference, img)
	return reference, img
}

func configFor(t *testing.T, img v1.Image, arch string) *v1.ConfigFile {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", arch
	return c
}

func write(t *testing.T, s *httptest.Server, reference string, img v1.Image) {
	t.Helper()
	ref, err := name.ParseReference(reference)
	if err == nil {
		err = remote.Write(ref, img, remote.WithTransport(s.Client().Transport))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// home is the home folder of all tests: a library looks it up once and keeps it.
var home string

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == UnpackRole { // started by a test
		os.Exit(UnpackMain(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == limitsRole {
		os.Exit(printLimits())
	}
	var err error
	if home, err = os.MkdirTemp("", "pando-image"); err != nil {
		log.Fatal(err)
	}
	code := m.Run()
	_ = os.RemoveAll(home)
	os.Exit(code)
}

// clean keeps the credentials of this machine out of a test.
func clean(t *testing.T) {
	t.Helper()
	t.Setenv("HOME", home)
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Join(home, ".docker")) })
	t.Setenv("DOCKER_CONFIG", "")
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
}

func TestATagIsResolvedOnceToItsDigest(t *testing.T) {
	clean(t)
	s, r := open(t), served(t, nil)
	reference, img := push(t, r, "v1")
	i, _ := pulled(t, s, reference)
	want, err := img.Digest()
	if err != nil || i.Digest != want.String() || i.Host != "" {
		t.Errorf("got %+v, want %s (%v)", i, want, err)
	}
	push(t, r, "v1") // the tag moves
	other := open(t)
	if err := other.Pull(t.Context(), i, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Root(i.Digest, ""); err != nil {
		t.Error(err)
	}
	again, _, err := s.Resolve(t.Context(), "", inside(reference))
	if err != nil || again.Digest == i.Digest {
		t.Errorf("the moved tag is %s (%v), want another digest", again.Digest, err)
	}
	same, _, err := s.Resolve(t.Context(), "", i)
	if err != nil || same.Digest != i.Digest {
		t.Errorf("the digest is %s (%v), want %s", same.Digest, err, i.Digest)
	}
}

func TestARegistryBehindTLSNeedsAnAuthorityThatIsKnown(t *testing.T) {
	clean(t)
	s := open(t)
	r := httptest.NewTLSServer(server.New(server.Logger(log.New(io.Discard, "", 0))))
	defer r.Close()
	r.Config.ErrorLog = log.New(io.Discard, "", 0)
	img, err := random.Image(1000, 1)
	if err == nil {
		img, err = mutate.ConfigFile(img, configFor(t, img, "amd64"))
	}
	if err != nil {
		t.Fatal(err)
	}
	host := strings.TrimPrefix(r.URL, "https://")
	write(t, r, host+"/web:v1", img)
	_, _, err = s.Resolve(t.Context(), "", inside(host+"/web:v1"))
	if !errors.Is(err, pando.ErrRefused) || !strings.Contains(err.Error(), "authority") {
		t.Errorf("without its authority: %v", err)
	}
	certs := t.TempDir()
	file := filepath.Join(certs, host, "ca.crt")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw})
	err = errors.Join(os.Mkdir(filepath.Dir(file), 0o755), os.WriteFile(file, text, 0o644))
	if err != nil {
		t.Fatal(err)
	}
	s.Certificates = []string{certs}
	pulled(t, s, host+"/web:v1")
}

func TestCredentialsComeFromTheUsualFile(t *testing.T) {
	clean(t)
	s := open(t)
	var locked atomic.Bool
	r := served(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if user, word, _ := q.BasicAuth(); locked.Load() && (user != "me" || word != "secret") {
				w.Header().Set("WWW-Authenticate", `Basic realm="shop"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, q)
		})
	})
	reference, _ := push(t, r, "v1")
	locked.Store(true)
	host := strings.TrimPrefix(r.URL, "http://")
	s.Registries = listed(t, host+" http")
	_, _, err := s.Resolve(t.Context(), "", inside(reference))
	if !errors.Is(err, pando.ErrForbidden) || !strings.Contains(err.Error(), "docker login") {
		t.Errorf("without credentials: %v", err)
	}
	auth := base64.StdEncoding.EncodeToString([]byte("me:secret"))
	config := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, auth)
	dir := filepath.Join(os.Getenv("HOME"), ".docker")
	err = errors.Join(os.Mkdir(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	pulled(t, s, reference)
}

func TestAMissingImageIsNamed(t *testing.T) {
	clean(t)
	s, r := open(t), served(t, nil)
	reference, _ := push(t, r, "v1")
	_, _, err := s.Resolve(t.Context(), "", inside(reference+"2"))
	if !errors.Is(err, pando.ErrNotFound) ||
		!strings.Contains(err.Error(), "check the name and the tag") {
		t.Errorf("a missing tag: %v", err)
	}
	r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, _, err = s.Resolve(ctx, "", inside(reference))
	if !errors.Is(err, pando.ErrUnreachable) || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("a registry that is gone: %v", err)
	}
}

// dying cuts every answer with a blob after some bytes, and counts the bytes that it sent.
type dying struct {
	next http.Handler
	on   atomic.Bool
	sent atomic.Int64
	part int64
}

func (d *dying) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if !d.on.Load() || !strings.Contains(q.URL.Path, "/blobs/") || q.Method != http.MethodGet {
		d.next.ServeHTTP(w, q)
		return
	}
	r := httptest.NewRecorder()
	q2 := q.Clone(q.Context())
	q2.Header.Del("Range")
	d.next.ServeHTTP(r, q2)
	b := r.Body.Bytes()
	text, _, _ := strings.Cut(strings.TrimPrefix(q.Header.Get("Range"), "bytes="), "-")
	from, _ := strconv.ParseInt(text, 10, 64)
	rest := b[min(from, int64(len(b))):]
	w.Header().Set("Content-Length", strconv.Itoa(len(rest)))
	if from > 0 {
		w.WriteHeader(http.StatusPartialContent)
	}
	n := min(d.part, int64(len(rest)))
	d.sent.Add(n)
	_, _ = w.Write(rest[:n]) // the connection is cut after it, because the length is a lie
}

func TestARegistryThatDiesInThePullIsResumed(t *testing.T) {
	clean(t)
	d := &dying{part: 300 << 10}
	r := served(t, func(next http.Handler) http.Handler { d.next = next; return d })
	reference, img := push(t, r, "v1")
	d.on.Store(true)
	s := open(t)
	pulled(t, s, reference)
	var size int64
	layers, err := img.Layers()
	for _, l := range layers {
		n, err := l.Size()
		if err != nil {
			t.Fatal(err)
		}
		size += n
	}
	if sent := d.sent.Load(); err != nil || sent > size+64<<10 {
		t.Errorf("%d bytes were sent for %d bytes of layers (%v): the pull began anew", sent, size, err)
	}
}

func TestARegistryThatStaysDeadIsNamed(t *testing.T) {
	clean(t)
	d := &dying{part: 0}
	r := served(t, func(next http.Handler) http.Handler { d.next = next; return d })
	reference, _ := push(t, r, "v1")
	s := open(t)
	i, _, err := s.Resolve(t.Context(), "", inside(reference))
	if err != nil {
		t.Fatal(err)
	}
	d.on.Store(true)
	err = s.Pull(t.Context(), i, nil)
	if err == nil || !strings.Contains(err.Error(), "registry 127.0.0.1") ||
		!strings.Contains(err.Error(), "0 of") {
		t.Errorf("a dead registry: %v", err)
	}
	if _, err := s.Root(i.Digest, ""); !errors.Is(err, pando.ErrNotReady) {
		t.Errorf("half an image has a root: %v", err)
	}
	d.on.Store(false)
	if err := s.Pull(t.Context(), i, nil); err != nil {
		t.Errorf("once it is back: %v", err)
	}
}

func TestWrongBytesAreNeverKept(t *testing.T) {
	clean(t)
	var lies atomic.Bool
	r := served(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if !lies.Load() || !strings.Contains(q.URL.Path, "/blobs/") {
				next.ServeHTTP(w, q)
				return
			}
			r := httptest.NewRecorder()
			next.ServeHTTP(r, q)
			b := r.Body.Bytes()
			b[0] ^= 1
			_, _ = w.Write(b)
		})
	})
	reference, _ := push(t, r, "v1")
	s := open(t)
	i, _, err := s.Resolve(t.Context(), "", inside(reference))
	if err != nil {
		t.Fatal(err)
	}
	lies.Store(true)
	err = s.Pull(t.Context(), i, nil)
	if err == nil || !strings.Contains(err.Error(), "wrong digest") {
		t.Errorf("wrong bytes: %v", err)
	}
	lies.Store(false)
	if err := s.Pull(t.Context(), i, nil); err != nil {
		t.Errorf("right bytes after wrong ones: %v", err)
	}
}

func TestAPeerWithTheLayersSparesTheRegistry(t *testing.T) {
	clean(t)
	r := served(t, nil)
	reference, _ := push(t, r, "v1")
	a, b := open(t), open(t)
	i, _ := pulled(t, a, reference)
	r.Close() // the registry is gone
	broken := errors.New("the link is cut")
	var cuts atomic.Int64
	b.Host, b.Peer = "host2", func(_ context.Context, h pando.Host, _, digest string, at int64,
	) (io.ReadCloser, error) {
		if h.Name != "host1" {
			return nil, broken
		}
		f, err := os.Open(filepath.Join(a.blobs(), strings.TrimPrefix(digest, "sha256:")))
		if err != nil {
			return nil, err
		}
		if _, err := f.Seek(at, io.SeekStart); err != nil {
			return nil, err
		}
		if cuts.Add(1)%3 == 0 {
			return io.NopCloser(io.LimitReader(f, 100<<10)), nil
		}
		return f, nil
	}
	if err := b.Pull(t.Context(), i, []pando.Host{{Name: "host9"}, {Name: "host1"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Root(i.Digest, ""); err != nil {
		t.Error(err)
	}
}

func TestAFileThatNobodyHasAnyMoreIsNamed(t *testing.T) {
	s := open(t)
	err := s.Pull(t.Context(), pando.Image{Reference: "docker-archive:/x.tar", Host: "host7",
		Digest: "sha256:" + strings.Repeat("0", 64)}, nil)
	if !errors.Is(err, pando.ErrUnavailable) || !strings.Contains(err.Error(), "host host7") {
		t.Errorf("got %v", err)
	}
}

func TestAnArchiveOfDockerSaveIsTheSameImageEveryTime(t *testing.T) {
	s := open(t)
	img, err := random.Image(1000, 2)
	if err == nil {
		img, err = mutate.ConfigFile(img, configFor(t, img, "amd64"))
	}
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("web:v1")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := tarball.WriteToFile(file, tag, img); err != nil {
		t.Fatal(err)
	}
	one, _ := pulled(t, s, "docker-archive:"+file)
	two, _ := pulled(t, open(t), "docker-archive:"+file)
	if one.Digest != two.Digest {
		t.Errorf("%s and %s", one.Digest, two.Digest)
	}
	_, _, err = s.Resolve(t.Context(), "", pando.Image{Reference: "docker-archive:" + file + "x"})
	if !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("a missing file: %v", err)
	}
}

func TestAnIndexIsChosenByArchitecture(t *testing.T) {
	clean(t)
	s, r := open(t), served(t, nil)
	var adds []mutate.IndexAddendum
	digests := map[string]string{}
	for _, arch := range []string{"arm64", "amd64"} {
		img, err := random.Image(100, 1)
		if err == nil {
			img, err = mutate.ConfigFile(img, configFor(t, img, arch))
		}
		if err != nil {
			t.Fatal(err)
		}
		c, err := img.ConfigName()
		if err != nil {
			t.Fatal(err)
		}
		digests[arch] = c.String()
		adds = append(adds, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	index := mutate.AppendManifests(empty.Index, adds...)
	ref, err := name.ParseReference(strings.TrimPrefix(r.URL, "http://") + "/web:v1")
	if err == nil {
		err = remote.WriteIndex(ref, index)
	}
	if err != nil {
		t.Fatal(err)
	}
	i, _ := pulled(t, s, ref.String())
	want, err := index.Digest()
	if err != nil || i.Digest != want.String() {
		t.Errorf("resolved to %s, want the index %s (%v)", i.Digest, want, err)
	}
	top, err := digest(i.Digest)
	if err != nil {
		t.Fatal(err)
	}
	k, err := s.look(top)
	if err != nil || k.manifest.Config.Digest.String() != digests["amd64"] {
		t.Errorf("chose %+v (%v), want %s", k, err, digests["amd64"])
	}
	s.Architecture = "riscv64"
	s.known = map[string]*known{}
	_, _, err = s.Resolve(t.Context(), "", inside(ref.String()))
	if !errors.Is(err, pando.ErrRefused) ||
		!strings.Contains(err.Error(), "linux/arm64, linux/amd64") {
		t.Errorf("for another machine: %v", err)
	}
}

func TestAManifestThatIsNoneIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{}`: "not known", `[]`: "manifest", `{"manifests":[]}`: "built for",
		`{"config":{"digest":"sha1:00"}}`: "manifest",
	} {
		s := open(t)
		h, err := s.add([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.look(h); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func FuzzDescribe(f *testing.F) {
	config, _ := json.Marshal(v1.ConfigFile{OS: "linux", Architecture: "amd64"})
	f.Add([]byte(`{"manifests":[{"digest":"sha256:00"}]}`), config)
	f.Fuzz(func(t *testing.T, manifest, config []byte) {
		s := open(t)
		if _, err := s.add(config); err != nil {
			t.Skip()
		}
		text := strings.ReplaceAll(string(manifest), "CONFIG", hash(config).String())
		h, err := s.add([]byte(text))
		if err != nil {
			t.Skip()
		}
		if k, err := s.look(h); err == nil && len(k.manifest.Layers) != len(k.config.RootFS.DiffIDs) {
			t.Error("an image with other layers than files")
		}
	})
}
