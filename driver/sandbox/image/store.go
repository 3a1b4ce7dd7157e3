// Package image keeps the images of one host: blobs by digest, and layers unpacked once each, which
// sandboxes stack without a copy. A bundle is an image of one layer.
//
// It trusts no bytes. Every blob is hashed before it has its name, every layer again while it is
// unpacked. A layer that would leave its own folder, or make a device, is refused.
//
// It never decides which image a service has, and it starts nothing.
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/access/share"
	"pando.run/pando/driver/sandbox/image/proof"
)

var _ pando.Images = (*Store)(nil)

// Bounds of an image. A hostile one fills neither memory nor the disk.
const (
	layersMax    = 120     // of one image: the kernel stacks no more in one page of options
	smallMax     = 4 << 20 // bytes of a manifest or a configuration
	blobBytesMax = 16 << 30
	recordMax    = 1 << 20
	offersMax    = 20 // of a registry, in an error
	// namesMax bounds the references that a record remembers. The oldest of the tenant with the most
	// is forgotten. Each tenant has a place: other hosts bring an image by its name.
	namesMax = access.TenantsMax
	// namedBytesMax bounds the record of an image: the longest names of all tenants fit.
	namedBytesMax = 4 << 20
)

// Config holds the place of a store and its ways to other stores.
type Config struct {
	Dir  string
	Host pando.HostName
	// Architecture of the images, in Go's word. Empty: this program's.
	Architecture string
	// Peer opens a blob of an image of another host's store from an offset on. Nil: other hosts are
	// not asked.
	Peer func(
		ctx context.Context, h pando.Host, image, digest string, offset int64,
	) (io.ReadCloser, error)
	// PeerSnapshot returns the description of a snapshot of another host's store. Nil: none has one.
	PeerSnapshot func(ctx context.Context, h pando.Host, digest string) (pando.SealedSnapshot, error)
	// Certificates are folders with one folder per registry, named HOST:PORT, and authorities in it.
	Certificates []string
	// Registries is the file in which the owner of this host lists registries. "": there is none.
	Registries string
	// Member reports whether an address is of a host of the cluster. Nil: none is known.
	Member func(netip.Addr) bool
	Clock  pando.Clock
	Log    *slog.Logger
	// FreeMin is the space that a pull leaves free on the disk.
	FreeMin int64
	// TenantBytes bounds the images of one tenant. Zero: nothing does.
	TenantBytes int64
	// Packed: this process unpacks no layer. Another one of the host, with root's rights, does.
	Packed bool
	// UnpackedMax bounds the files of one image in bytes, and its blobs. Zero: 16 GiB.
	UnpackedMax int64
	// Unpack is a command that calls UnpackMain, so that an archive of a stranger is read by a process
	// with limits. Nil: this process reads it.
	Unpack []string

	level func(netip.Addr) reach // of a test
}

// vault is the files of a store: blobs, folders of layers, and their locks.
type vault struct {
	Config
	sent proof.Book // which repositories have sent which blobs
}

// Store is the images of one host. Several processes may open one folder. Its methods may be called
// from any goroutine.
type Store struct {
	*vault
	refusals refusals
	mu       sync.Mutex
	known    map[string]*known // by digest: what Root needs, read once
}

// known is an image as its blobs describe it.
type known struct {
	top      v1.Hash
	child    v1.Hash // the manifest for this host, within an index; otherwise top
	manifest *v1.Manifest
	config   *v1.ConfigFile
	users    map[string]pando.ImageRoot // by the word of the spec
	touched  time.Time
}

// Open makes the folders of a store, or finds them.
func Open(c Config) (*Store, error) {
	if c.Architecture == "" {
		c.Architecture = runtime.GOARCH
	}
	if c.UnpackedMax == 0 {
		c.UnpackedMax = blobBytesMax
	}
	s := &Store{vault: &vault{c, proof.Book{Dir: filepath.Join(c.Dir, "proofs")}}, known: map[string]*known{}}
	for _, dir := range []string{c.Dir, s.LayersDir(), s.blobs(), s.records(), s.locks(),
		s.snapshots(), s.sent.Dir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make a folder for images: %w", err)
		}
	}
	return s, nil
}

// LayersDir returns the folder of the unpacked layers. The names in ImageRoot.Layers are below it.
func (s *vault) LayersDir() string { return filepath.Join(s.Dir, "layers") }
func (s *vault) blobs() string     { return filepath.Join(s.Dir, "blobs") }
func (s *vault) records() string   { return filepath.Join(s.Dir, "images") }
func (s *vault) snapshots() string { return filepath.Join(s.Dir, "snapshots") }
func (s *vault) locks() string     { return filepath.Join(s.Dir, "locks") }

func (s *vault) blob(h v1.Hash) string   { return filepath.Join(s.blobs(), h.Hex) }
func (s *vault) record(h v1.Hash) string { return filepath.Join(s.records(), h.Hex) }

// layer returns the folder of a layer by the digest of its archive.
func (s *vault) layer(files v1.Hash) string {
	return filepath.Join(s.LayersDir(), layerName(files))
}

// layerName is short, so that the names of all layers fit into one page: 128 bits of the digest.
func layerName(files v1.Hash) string { return files.Hex[:32] }

// digest reads a digest. Only SHA-256 names blobs here.
func digest(text string) (v1.Hash, error) {
	h, err := v1.NewHash(text)
	if err == nil && (h.Algorithm != "sha256" || strings.ToLower(h.Hex) != h.Hex) {
		err = errors.New("want sha256: and 64 hexadecimal digits")
	}
	if err != nil {
		return h, fmt.Errorf("%w: digest %q: %w", pando.ErrInvalid, text, err)
	}
	return h, nil
}

// lockWait is the wait between two attempts at a lock that another process has.
const lockWait = 20 * time.Millisecond

// lock takes a lock by name against all processes and goroutines. Shared locks exclude only others.
func (s *vault) lock(ctx context.Context, name string, how int) (unlock func(), err error) {
	f, err := s.lockFile(ctx, filepath.Join(s.locks(), name), how)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// lockFile opens a file, or makes it, and locks it until it is closed.
func (s *vault) lockFile(ctx context.Context, path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the store of images: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if err == unix.EWOULDBLOCK {
			err = pando.Sleep(ctx, s.Clock, lockWait)
		}
		if err != nil && err != unix.EINTR {
			f.Close()
			return nil, fmt.Errorf("lock the store of images: %w", err)
		}
	}
}

// using keeps the sweep away until the caller is done.
func (s *vault) using(ctx context.Context) (done func(), err error) {
	return s.lock(ctx, "all", unix.LOCK_SH)
}

// named is the record of an image: the references that named it here. Its file's time is the last
// use.
type named struct {
	Digest string   `json:"digest"`
	Names  []naming `json:"names,omitempty"`
	// References are the names in a file of a former build, which knew no tenants.
	References []string `json:"references,omitempty"`
	// Admitted are the tenants that may use the image without a question to its registry.
	Admitted []admission `json:"admitted,omitempty"`
	// Vouched: an operator has brought it, whose word counts for all its blobs.
	Vouched bool `json:"vouched,omitempty"`
	// Tenants are those for whose instances it was brought to this host.
	Tenants []pando.Tenant `json:"tenants,omitempty"`
}

// naming is a reference that named an image, and a tenant that used it. Empty: of the hosts. Each tenant
// has a naming of its own, because the namings of one tenant push out its own alone.
type naming struct {
	Tenant    pando.Tenant `json:"tenant,omitempty"`
	Reference string       `json:"reference"`
}

// references returns the references that named an image here, the oldest first.
func (r named) references() []string {
	out := make([]string, 0, len(r.Names))
	seen := map[string]bool{}
	for _, one := range r.Names {
		if !seen[one.Reference] {
			seen[one.Reference] = true
			out = append(out, one.Reference)
		}
	}
	return out
}

// remember writes the record of an image, with one more reference of a tenant.
func (s *Store) remember(h v1.Hash, by pando.Tenant, reference string) error {
	r := s.recalled(h)
	r.Digest = h.String()
	if one := (naming{by, reference}); reference != "" && !slices.Contains(r.Names, one) {
		r.Names = share.Newest(append(r.Names, one), namesMax,
			func(n naming) pando.Tenant { return n.Tenant })
	}
	return s.write(h, r)
}

func (s *Store) write(h v1.Hash, r named) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return writeFile(s.record(h), b)
}

// recalled reads the record of an image. A broken one counts as empty: its blobs have the truth.
func (s *Store) recalled(h v1.Hash) (r named) {
	if b, err := readBounded(s.record(h), namedBytesMax); err == nil {
		_ = json.Unmarshal(b, &r)
	}
	for _, reference := range r.References {
		r.Names = append(r.Names, naming{Reference: reference})
	}
	r.References = nil
	return r
}

// touchEvery is how exact the last use of an image is.
const touchEvery = time.Minute

// Touch notes that an image is in use, so that the sweep keeps it.
func (s *Store) Touch(text string) error {
	h, err := digest(text)
	if err != nil {
		return err
	}
	now := s.Clock.Now()
	err = os.Chtimes(s.record(h), now, now)
	if errors.Is(err, fs.ErrPermission) { // a record of another daemon takes the time of now alone
		stamp := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
		err = unix.UtimesNanoAt(unix.AT_FDCWD, s.record(h), stamp, 0)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("note the use of an image: %w", err)
	}
	return nil
}

// writeFile replaces a file at once.
func writeFile(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("write a file of an image: %w", err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write a file of an image: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

func readBounded(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%s: %w: more than %d bytes", filepath.Base(path), pando.ErrTooLarge, most)
	}
	return b, err
}
