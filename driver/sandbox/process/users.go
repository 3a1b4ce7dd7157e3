package process

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/access/share"
	"pando.run/pando/driver/sandbox/process/volume"
	"pando.run/pando/driver/sandbox/process/wire"
)

// usersRanges is the number of first ranges.
const usersRanges = (uidFirst - wire.UsersFirst) / wire.UsersEach

// ownUsers reports whether the program of a spec runs in a user namespace. The ids of an image are
// never the host's, and root is only where the spec asks for the host's.
func ownUsers(s pando.Spec, uid uint32) bool {
	return s.UsernsMode != pando.UsernsHost && (s.Image.Digest != "" || uid == 0)
}

// ranges are the records of the ranges of users that the services of a host have.
type ranges struct {
	mu     sync.Mutex
	dir    string // of the records
	runDir string // of the sandboxes
	clock  pando.Clock
}

// give gives a program the range of its service, if it is to have one.
func (r *ranges) give(p *wire.Program, s pando.Spec) error {
	if !ownUsers(s, p.UID) {
		return nil
	}
	first, err := r.of(p.Service)
	if err != nil {
		return fmt.Errorf("give %s a range of users: %w", p.Service, err)
	}
	p.Users = &wire.Users{First: first, Large: largeIDs(*p)}
	return nil
}

// largeIDs returns the ids of a program that have no place by their number. Those that it runs as are
// among them, whatever number of ids its image has.
func largeIDs(p wire.Program) (out []uint32) {
	for _, id := range slices.Concat([]uint32{p.UID, p.GID}, p.Groups, p.Owners) {
		if id >= wire.LargeEach && !slices.Contains(out, id) && len(out) < pando.LargeIDsMax {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// of returns the first id of a service's range, and records it: the owner of a file with the
// service's name is the first id.
func (r *ranges) of(s pando.ServiceKey) (uint32, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	file := filepath.Join(r.dir, string(s.Tenant), string(s.Name))
	now := r.clock.Now()
	if st, err := os.Stat(file); err == nil && volume.OwnerOf(st) >= wire.UsersFirst {
		return volume.OwnerOf(st), os.Chtimes(file, now, now)
	}
	first, err := r.free(usersRanges)
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o711); err != nil {
		return 0, err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return first, f.Chown(int(first), int(first))
}

// free returns the first id of a range that no service has, out of a number of ranges. If all
// are given, it forgets a record of a service without a sandbox here: that of the tenant with the
// most, which was unused for the longest time. So services that come and go cost only their own
// tenant a range.
func (r *ranges) free(most int) (uint32, error) {
	files, err := filepath.Glob(filepath.Join(r.dir, "*", "*"))
	if err != nil {
		return 0, err
	}
	taken := make(map[uint32]string, len(files))
	used := make(map[string]time.Time, len(files))
	for _, file := range files {
		if st, err := os.Stat(file); err == nil {
			taken[volume.OwnerOf(st)], used[file] = file, st.ModTime()
		}
	}
	for n := range most {
		if first := uint32(wire.UsersFirst + n*wire.UsersEach); taken[first] == "" {
			return first, nil
		}
	}
	services, err := servicesOf(r.runDir)
	if err != nil {
		return 0, err
	}
	for key := range services {
		delete(used, filepath.Join(r.dir, string(key.Tenant), string(key.Name)))
	}
	idle := slices.SortedFunc(maps.Keys(used), func(a, b string) int {
		return cmp.Or(used[a].Compare(used[b]), cmp.Compare(a, b))
	})
	pieces := make([]share.Piece[string], len(idle))
	for n, file := range idle {
		pieces[n] = share.Piece[string]{Owner: filepath.Dir(file), Size: 1}
	}
	for n := range share.Trim(pieces, int64(len(pieces)-1)) {
		for first, file := range taken {
			if file == idle[n] {
				return first, os.Remove(file)
			}
		}
	}
	return 0, fmt.Errorf("%w: all %d ranges are in use; start it on another host",
		pando.ErrTooLarge, most)
}
