package criu

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"pando.run/pando"
)

// listed are the files that a restore may read. CRIU's other files make mounts, devices, links and
// firewalls, or are of older releases. The last three are Pando's.
var listed = regexp.MustCompile(`^(inventory|pstree|files|seccomp|timens-\d+|pipes-data|fifo-data|` +
	`filelocks|sk-queues|remap-fpath|memfd|eventpoll-tfd|inotify-wd|signalfd|timerfd|` +
	`itimers-\d+|posix-timers-\d+|signal-[sp]-\d+|core-\d+|fdinfo-\d+|fs-\d+|ids-\d+|mm-\d+|` +
	`pagemap-\d+|pagemap-shmem-\d+|pages-\d+|ghost-file-[0-9a-f]+|tcp-stream-[0-9a-f]+|` +
	`stats-(dump|restore))(\.img)?$|^(pando\.json|private\.tar|base)$`)

// rights checks the files of a frozen program against the rights that Pando gives it. CRIU restores
// as root whatever its files say, and anybody can write such files.
type rights struct {
	pando.Frozen
	filters []filter        // of system calls
	synced  map[uint32]bool // threads whose filters cover all threads of their process
	bare    map[uint32]bool // threads without filters of their own
	leader  map[uint32]uint32
	writes  map[uint32]bool  // files that a mapping writes to, by number
	ghosts  map[uint32]bool  // deleted files, which CRIU makes anew in the sandbox
	opened  map[uint32]*file // regular files, folders and devices
}

// file is a file that the program has open, or that its memory maps.
type file struct {
	name        string
	flags, mode uint32
}

// filter is a filter of system calls: its code, and the filters that it follows.
type filter struct {
	code  []byte
	all   bool // it is set for every thread of the process
	chain []int
}

// check returns nil if the program of a folder has the rights of f, and no others.
func check(f pando.Frozen) error {
	r := &rights{Frozen: f, writes: map[uint32]bool{}, ghosts: map[uint32]bool{},
		opened: map[uint32]*file{}, synced: map[uint32]bool{}, bare: map[uint32]bool{},
		leader: map[uint32]uint32{}}
	names, err := os.ReadDir(f.Dir)
	if err != nil {
		return fmt.Errorf("read the files of a frozen program: %w", err)
	}
	for _, read := range []func([]os.DirEntry) error{r.names, r.processes, r.seccomp, r.cores,
		r.namespaces, r.remaps, r.files, r.mappings} {
		if err := read(names); err != nil {
			return fmt.Errorf("%w: the files of the frozen program are not as Pando writes them: %w",
				pando.ErrForbidden, err)
		}
	}
	return r.mayOpen()
}

func (r *rights) names(all []os.DirEntry) error {
	for _, e := range all {
		if !e.Type().IsRegular() || !listed.MatchString(e.Name()) {
			return fmt.Errorf("a file %q", e.Name())
		}
	}
	return nil
}

// each reads the files with a prefix in their names.
func (r *rights) each(all []os.DirEntry, prefix string, read func(string, message) error) error {
	found := false
	for _, e := range all {
		if !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		found = true
		m, err := only(filepath.Join(r.Dir, e.Name()))
		if err == nil {
			err = read(e.Name(), m)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name(), err)
		}
	}
	if !found {
		return fmt.Errorf("no file %s*", prefix)
	}
	return nil
}

// processes reads the tree of processes. The first is the program.
func (r *rights) processes([]os.DirEntry) error {
	const pid, threads = 1, 5
	all, err := entries(filepath.Join(r.Dir, "pstree.img"))
	if err != nil {
		return err
	}
	for n, m := range all {
		id, _, err := m.number(pid)
		own, err2 := m.numbers(threads)
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if n == 0 && int(id) != r.PID {
			return fmt.Errorf("the program has the number %d, want %d", id, r.PID)
		}
		if len(own) == 0 {
			own = []uint64{uint64(id)}
		}
		for _, t := range own {
			if _, twice := r.leader[uint32(t)]; twice {
				return fmt.Errorf("two threads of the number %d", t)
			}
			r.leader[uint32(t)] = id
		}
	}
	if len(all) == 0 {
		return errors.New("it has no process")
	}
	return nil
}

// seccomp reads the filters of system calls. Each may follow an earlier one.
func (r *rights) seccomp(all []os.DirEntry) error {
	const filters, code, prev, flags = 1, 1, 2, 3
	if !slices.ContainsFunc(all, func(e os.DirEntry) bool { return e.Name() == "seccomp.img" }) {
		return nil // no thread has one
	}
	m, err := only(filepath.Join(r.Dir, "seccomp.img"))
	if err != nil {
		return err
	}
	for n, v := range m[filters] {
		one, err := decode(v.bytes)
		if err != nil {
			return err
		}
		text, _, err := one.text(code)
		before, follows, err2 := one.number(prev)
		how, _, err3 := one.number(flags)
		if err := errors.Join(err, err2, err3); err != nil {
			return err
		}
		chain := []int{n}
		if follows {
			if int(before) >= n {
				return fmt.Errorf("the filter %d follows %d", n, before)
			}
			chain = append(chain, r.filters[before].chain...)
		}
		r.filters = append(r.filters,
			filter{code: text, all: how&unix.SECCOMP_FILTER_FLAG_TSYNC != 0, chain: chain})
	}
	return nil
}

// cores checks every thread.
func (r *rights) cores(all []os.DirEntry) error {
	if err := r.each(all, "core-", r.core); err != nil {
		return err
	}
	for t := range r.bare {
		if !r.synced[r.leader[t]] {
			return fmt.Errorf("the thread %d without a filter of system calls", t)
		}
	}
	return nil
}

func (r *rights) core(name string, m message) error {
	const task, ids, thread = 3, 4, 5
	tid, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(name, "core-"), ".img"), 10, 32)
	if err != nil {
		return err
	}
	of, ofTask, err := m.sub(task)
	if first := uint32(tid); err == nil && ofTask && r.leader[first] == first {
		if ended, err := hasEnded(of); ended || err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	t, there, err := m.sub(thread)
	if err == nil && !there {
		err = errors.New("a thread without its rights")
	}
	if err == nil && len(m[ids]) > 0 {
		err = errors.New("namespaces of its own")
	}
	if err == nil {
		err = r.thread(uint32(tid), t)
	}
	if err == nil && ofTask {
		err = r.task(of)
	}
	return err
}

// hasEnded reports whether a process has ended, and only its exit code is left.
func hasEnded(task message) (bool, error) {
	const state, dead, zombie = 1, 2, 6
	is, _, err := task.number(state)
	return is == dead || is == zombie, err
}

// task checks what all threads of a process share.
func (r *rights) task(m message) error {
	const oom = 14
	adjusted, there, err := m.long(oom)
	if err != nil || !there || int64(adjusted) >= 0 {
		return err
	}
	// The kernel ends such a process late. Only the sandbox's own shim gives it that.
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", r.Inside))
	own, err2 := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || err2 != nil || int64(adjusted) < int64(own) {
		return fmt.Errorf("oom_score_adj %d", int64(adjusted))
	}
	return nil
}

// thread checks the rights of one thread.
func (r *rights) thread(tid uint32, m message) error {
	const policy, creds = 4, 10
	is, there, err := m.number(policy)
	if err != nil {
		return err
	}
	usual := []uint32{unix.SCHED_NORMAL, unix.SCHED_BATCH, unix.SCHED_IDLE}
	if there && !slices.Contains(usual, is) {
		return fmt.Errorf("the scheduling policy %d", is)
	}
	c, there, err := m.sub(creds)
	if err == nil && !there {
		err = errors.New("a thread without a user")
	}
	if err == nil {
		err = r.user(c)
	}
	if err != nil || r.Filter == nil {
		return err
	}
	return r.filtered(tid, m)
}

// filtered checks that a thread has the filter of Pando. CRIU notes filters that all threads of a
// process share at its first thread.
func (r *rights) filtered(tid uint32, m message) error {
	const mode, filter = 11, 12
	kind, has, err := m.number(mode)
	of, there, err2 := m.number(filter)
	switch err := errors.Join(err, err2); {
	case err != nil:
		return err
	case !has && !there:
		r.bare[tid] = true
		return nil
	case kind != unix.SECCOMP_MODE_FILTER || !there || int(of) >= len(r.filters):
		return errors.New("a thread without a filter of system calls")
	}
	for _, n := range r.filters[of].chain {
		if f := r.filters[n]; bytes.Equal(f.code, r.Filter) {
			r.synced[tid] = r.synced[tid] || f.all
			return nil
		}
	}
	return errors.New("a thread whose filter of system calls is not that of this build; another build " +
		"took it, so take a new one")
}

// user checks the credentials of a thread: one user and group, no other groups, no capability, and
// no way to new ones.
func (r *rights) user(m message) error {
	const secbits, groups, profile, sockets, apparmor, noNew = 13, 14, 15, 16, 17, 18
	for field := protowire.Number(1); field <= 8; field++ {
		want, kind := r.UID, "user"
		if field%2 == 0 {
			want, kind = r.GID, "group"
		}
		id, there, err := m.number(field)
		if err != nil {
			return err
		}
		if !there || id != want {
			return fmt.Errorf("the %s %d, and the service has %d", kind, id, want)
		}
	}
	for _, field := range []protowire.Number{9, 10, 11, 12, 19} {
		all, err := m.numbers(field)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(all, func(part uint64) bool { return part != 0 }) {
			return fmt.Errorf("capabilities %x", all)
		}
	}
	bits, _, err := m.number(secbits)
	is, _, err2 := m.number(noNew)
	switch err := errors.Join(err, err2); {
	case err != nil:
		return err
	case len(m[groups]) > 0:
		return errors.New("further groups")
	case bits != 0:
		return fmt.Errorf("the secure bits %x", bits)
	case is != 1:
		return errors.New("a thread without no_new_privs")
	case len(m[sockets]) > 0 || len(m[apparmor]) > 0:
		return errors.New("a security profile of its own")
	}
	return r.profile(m, profile)
}

// profile checks a name of a security profile: it is that of the sandbox's shim.
func (r *rights) profile(m message, field protowire.Number) error {
	name, there, err := m.text(field)
	if err != nil || !there || len(name) == 0 {
		return err
	}
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/attr/current", r.Inside))
	is, _, _ := strings.Cut(strings.TrimSpace(strings.TrimRight(string(own), "\x00")), " (")
	if err != nil || is != string(name) {
		return fmt.Errorf("the security profile %q", name)
	}
	return nil
}

// namespaces checks that every process has the namespaces of the sandbox. CRIU would make others,
// with mounts and links from the files.
func (r *rights) namespaces(all []os.DirEntry) error {
	const rootIDs, first, last = 3, 5, 11 // 12 is that of clocks, which a restored program has
	m, err := only(filepath.Join(r.Dir, "inventory.img"))
	if err != nil {
		return err
	}
	root, there, err := m.sub(rootIDs)
	if err == nil && !there {
		err = errors.New("inventory.img: no namespaces of the sandbox")
	}
	if err != nil {
		return err
	}
	return r.each(all, "ids-", func(_ string, m message) error {
		for field := protowire.Number(first); field <= last; field++ {
			want, there, err := root.number(field)
			is, here, err2 := m.number(field)
			if err := errors.Join(err, err2); err != nil {
				return err
			}
			if is != want || here != there {
				return errors.New("namespaces of its own")
			}
		}
		return nil
	})
}
