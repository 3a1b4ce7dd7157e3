// Package proof keeps which repositories have sent which blobs to a host.
//
// A digest is no right, and neither is a manifest: anybody can write one that names the layer of
// another tenant. So a blob that is here counts as here for a tenant's image only if the repository of
// the image has once sent all its bytes. Else it comes again, and its hash is the proof. Who has not
// the bytes cannot send them.
//
// It never reads or deletes a blob.
package proof

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/access/share"
)

// repositoriesMax bounds the repositories of one blob. The oldest of the tenant with the most is
// forgotten, and sends the blob again. Each tenant has a place for two: a base layer is of many.
const repositoriesMax = 2 * access.TenantsMax

// recordBytesMax bounds the file of one blob: the longest names of all repositories fit.
const recordBytesMax = 2 << 20

// Book is a folder with a file for each blob. Several processes may write it: of two that write at
// once, one is forgotten, and its repository sends the blob again.
type Book struct{ Dir string }

// Record is what is known of a blob.
type Record struct {
	// Senders have sent it whole.
	Senders []Sender `json:"senders,omitempty"`
	// Repositories are the senders in a file of a former build, which named no tenants.
	Repositories []string `json:"repositories,omitempty"`
	// Files is the digest of the archive to which it was unpacked.
	Files string `json:"files,omitempty"`
}

// Sender is a repository that has sent a blob, and the tenant for which it was first asked.
type Sender struct {
	Tenant     pando.Tenant `json:"tenant,omitempty"`
	Repository string       `json:"repository"`
}

// HasSent reports whether a repository has sent the blob.
func (r Record) HasSent(repository string) bool {
	return slices.ContainsFunc(r.Senders, func(s Sender) bool { return s.Repository == repository })
}

// Of reads what is known of a blob. A missing or broken file counts as empty.
func (b Book) Of(h v1.Hash) (r Record) {
	path := filepath.Join(b.Dir, h.Hex)
	if st, err := os.Stat(path); err != nil || st.Size() > recordBytesMax {
		return r
	}
	if text, err := os.ReadFile(path); err == nil {
		_ = json.Unmarshal(text, &r)
	}
	for _, name := range r.Repositories {
		r.Senders = append(r.Senders, Sender{Repository: name})
	}
	r.Repositories = nil
	return r
}

// HasSent reports whether a repository has sent a blob.
func (b Book) HasSent(repository string, h v1.Hash) bool {
	return b.Of(h).HasSent(repository)
}

// Sent notes that a repository has sent a blob whole, for a tenant.
func (b Book) Sent(t pando.Tenant, repository string, h v1.Hash) error {
	r := b.Of(h)
	if r.HasSent(repository) {
		return nil
	}
	r.Senders = share.Newest(append(r.Senders, Sender{t, repository}), repositoriesMax,
		func(s Sender) pando.Tenant { return s.Tenant })
	return b.write(h, r)
}

// Unpacks reports whether a blob is known to unpack to an archive.
func (b Book) Unpacks(h, files v1.Hash) bool { return b.Of(h).Files == files.String() }

// Unpacked notes that a blob unpacks to an archive.
func (b Book) Unpacked(h, files v1.Hash) error {
	r := b.Of(h)
	r.Files = files.String()
	return b.write(h, r)
}

func (b Book) write(h v1.Hash, r Record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(b.Dir, ".new-*")
	if err == nil {
		_, err = f.Write(text)
		err = errors.Join(err, f.Close())
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(b.Dir, h.Hex))
	}
	if err != nil {
		return fmt.Errorf("note where a blob of an image came from: %w", err)
	}
	return nil
}
