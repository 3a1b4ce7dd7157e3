package image

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"pando.run/pando"
)

// largeID is the first id that a service does not have by its number. The sandboxes give such an id a
// place of its own, so they must know which ones the files of an image have.
const largeID = 1 << 20

// ownersSuffix ends the name of the file with the large ids of a layer. Most layers have none.
const ownersSuffix = ".owners"

// own notes the large ids of an entry. What is beyond the bound belongs to nobody inside, and the log
// says so.
func (u *unpacker) own(h *tar.Header) {
	for _, id := range []int{h.Uid, h.Gid} {
		if id < largeID || int(uint32(id)) != id || slices.Contains(u.owners, uint32(id)) {
			continue
		}
		if len(u.owners) >= pando.LargeIDsMax {
			u.leaveOut(fmt.Sprintf("owner %d of %s", id, h.Name))
			continue
		}
		u.owners = append(u.owners, uint32(id))
	}
}

// noteOwners keeps the large ids of a layer beside its folder.
func (s *vault) noteOwners(files v1.Hash, owners []uint32) error {
	if len(owners) == 0 {
		return nil
	}
	text, err := json.Marshal(owners)
	if err != nil {
		return err
	}
	return writeFile(s.layer(files)+ownersSuffix, text)
}

// ownersOf returns the large ids of layers, in order.
func (s *vault) ownersOf(layers []v1.Hash) (out []uint32, err error) {
	for _, files := range layers {
		text, err := os.ReadFile(s.layer(files) + ownersSuffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var owners []uint32
		if err == nil {
			err = json.Unmarshal(text, &owners)
		}
		if err != nil {
			return nil, fmt.Errorf("read the owners of layer %s: %w", files, err)
		}
		out = append(out, owners...)
	}
	slices.Sort(out)
	out = slices.Compact(out)
	return out[:min(len(out), pando.LargeIDsMax)], nil
}
