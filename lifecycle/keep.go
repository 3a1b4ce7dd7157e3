package lifecycle

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"pando.run/pando"
)

// Holder is a host that keeps, or may keep, a copy of a state.
type Holder struct {
	Name  pando.HostName
	Here  bool // it has its lease
	Stays bool // it takes new work: it does not leave and follows the store
	Able  bool // its build keeps copies
	Runs  int  // instances of the service
}

// Keeping holds the facts that choose the keeper of a state.
type Keeping struct {
	Now  pando.Keeper   // zero Host: none yet
	Want int            // copies, by the newest spec
	Home pando.HostName // without a keeper: the host that has the state, or will have it
	// Hosts are all hosts with a lease.
	Hosts []Holder
}

// Keep returns the next keeper of a state, with the reason, or the present one and "".
//
//	joining ──(has all: the keeper's write)──► copy ──(gone, silent, leaves, too many)──► dropped
//
// A copy is dropped only beside another one that lives, so no acknowledged commit is given up.
// If no copy lives, nothing changes. A leaving or silent copy goes once enough others are whole.
// The keeper is a copy that lives and stays. It changes only if it is gone, leaves or is silent.
func Keep(k Keeping) (pando.Keeper, string) {
	hosts := map[pando.HostName]Holder{}
	for _, h := range k.Hosts {
		if h.Here {
			hosts[h.Name] = h
		}
	}
	r := keeping{Keeping: k, hosts: hosts, next: k.Now}
	r.next.Copies, r.next.Joining = slices.Clone(k.Now.Copies), slices.Clone(k.Now.Joining)
	r.next.Silent = slices.Clone(k.Now.Silent)
	r.next.Want = k.Want
	if k.Now.Host == "" {
		if k.Want < 2 || k.Home == "" {
			return k.Now, ""
		}
		r.next.Host, r.next.Copies = k.Home, []pando.HostName{k.Home}
		r.say("%s has the state", k.Home)
	}
	if r.lives() {
		r.drop()
		r.lead()
		r.join()
	} else if len(k.Now.Copies) > 0 {
		return k.Now, "" // no living host has all acknowledged commits: wait
	}
	r.date()
	if r.next.Want != k.Now.Want && len(r.why) == 0 {
		r.say("the spec wants %d copies", k.Want)
	}
	return r.next, strings.Join(r.why, "; ")
}

// keeping is one application of the rule.
type keeping struct {
	Keeping
	hosts map[pando.HostName]Holder
	next  pando.Keeper
	why   []string
}

func (r *keeping) say(format string, args ...any) {
	r.why = append(r.why, fmt.Sprintf(format, args...))
}

// lives reports whether a host that has every acknowledged commit has its lease.
func (r *keeping) lives() bool {
	return slices.ContainsFunc(r.next.Copies, func(h pando.HostName) bool { return r.hosts[h].Here })
}

func (r *keeping) silent(h pando.HostName) bool { return slices.Contains(r.next.Silent, h) }

// sound reports whether a host can keep a copy from now on.
func (r *keeping) sound(h pando.HostName) bool {
	o := r.hosts[h]
	return o.Here && o.Stays && !r.silent(h)
}

func (r *keeping) soundCopies() int { return count(r.next.Copies, r.sound) }

func count(all []pando.HostName, is func(pando.HostName) bool) (n int) {
	for _, h := range all {
		if is(h) {
			n++
		}
	}
	return n
}

// drop removes the copies that are gone, those that leave or are silent once others are enough, and
// those that are too many. It keeps at least one that lives.
func (r *keeping) drop() {
	r.next.Copies = slices.DeleteFunc(r.next.Copies, func(h pando.HostName) bool {
		if r.hosts[h].Here {
			return false
		}
		r.say("%s, which had a copy, is away", h)
		return true
	})
	r.next.Joining = slices.DeleteFunc(r.next.Joining, func(h pando.HostName) bool {
		if r.sound(h) {
			return false
		}
		r.say("%s, which was to have a copy, is %s", h, r.fault(h))
		return true
	})
	for _, h := range slices.Clone(r.next.Copies) {
		others := r.soundCopies()
		silent := r.silent(h) && others >= 1 // a commit waits for it, so it goes first
		if !r.sound(h) && (silent || others >= max(1, r.Want)) {
			r.next.Copies = slices.DeleteFunc(r.next.Copies,
				func(o pando.HostName) bool { return o == h })
			r.say("%s, which had a copy, is %s", h, r.fault(h))
		}
	}
	for len(r.next.Copies) > max(1, r.Want) {
		extra := slices.MinFunc(r.next.Copies, func(a, b pando.HostName) int {
			return -r.better(a, b)
		})
		r.next.Copies = slices.DeleteFunc(r.next.Copies,
			func(o pando.HostName) bool { return o == extra })
		r.say("the copy on %s is one too many", extra)
	}
	r.next.Silent = slices.DeleteFunc(r.next.Silent,
		func(h pando.HostName) bool { return !r.hosts[h].Here })
}

func (r *keeping) fault(h pando.HostName) string {
	switch o := r.hosts[h]; {
	case !o.Here:
		return "away"
	case !o.Stays:
		return "leaving"
	}
	return "silent"
}

// better orders two hosts as a place of main: sound, the present keeper, with instances, by name.
func (r *keeping) better(a, b pando.HostName) int {
	rank := func(h pando.HostName) (n int) {
		if r.sound(h) {
			n += 4
		}
		if h == r.next.Host {
			n += 2
		}
		if r.hosts[h].Runs > 0 {
			n++
		}
		return n
	}
	return cmp.Or(cmp.Compare(rank(b), rank(a)), cmp.Compare(a, b))
}

// lead chooses the keeper among the copies.
func (r *keeping) lead() {
	best := slices.MinFunc(r.next.Copies, r.better)
	if best == r.next.Host {
		return
	}
	r.say("%s keeps main instead of %s", best, r.next.Host)
	r.next.Host = best
}

// join chooses hosts for the copies that are missing. Hosts with instances come first, then those
// that a hash of the service prefers, so that the copies of many services are on many hosts.
func (r *keeping) join() {
	missing := r.Want - r.soundCopies() - len(r.next.Joining)
	for missing < 0 && len(r.next.Joining) > 0 {
		r.next.Joining = r.next.Joining[:len(r.next.Joining)-1]
		missing++
		r.say("the spec wants %d copies", r.Want)
	}
	var free []Holder
	for _, h := range r.hosts {
		if h.Able && r.sound(h.Name) && !r.next.Holds(h.Name) {
			free = append(free, h)
		}
	}
	slices.SortFunc(free, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(min(b.Runs, 1), min(a.Runs, 1)),
			cmp.Compare(r.draw(a.Name), r.draw(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	for _, h := range free[:max(0, min(missing, len(free)))] {
		r.next.Joining = append(r.next.Joining, h.Name)
		r.say("%s gets a copy", h.Name)
	}
	if missing > len(free) && len(r.next.Silent) > 0 {
		// There is no other host: the silent ones are tried again.
		r.next.Silent = nil
		r.say("a silent host is tried again, because there is no other")
	}
}

// date notes the epoch of each host that begins to join now.
func (r *keeping) date() {
	since := map[pando.HostName]int64{}
	for h, at := range r.Now.Since {
		if r.next.Holds(h) {
			since[h] = at
		}
	}
	for _, h := range r.next.Joining {
		if !slices.Contains(r.Now.Joining, h) {
			since[h] = r.Now.Epoch + 1
		}
	}
	r.next.Since = since
}

func (r *keeping) draw(h pando.HostName) uint64 {
	f := fnv.New64a()
	_, _ = fmt.Fprintf(f, "%s/%s/%s", r.Now.Service.Tenant, r.Now.Service.Name, h)
	return f.Sum64()
}

// Homeless returns why no instance of a service with copies can start, or "": no host with its
// state is here.
func Homeless(k pando.Keeper, here func(pando.HostName) bool) string {
	if k.Host == "" || slices.ContainsFunc(k.Copies, here) {
		return ""
	}
	names := make([]string, len(k.Copies))
	for n, h := range k.Copies {
		names[n] = string(h)
	}
	return fmt.Sprintf("its state is on %s, which %s away: it starts when one of them is back; "+
		"`pando rm --purge` and a new deploy begin without that state",
		strings.Join(names, " and "), map[bool]string{true: "is", false: "are"}[len(names) == 1])
}

// Uncopied returns why no commit can be acknowledged now, or "".
func Uncopied(k pando.Keeper) string {
	if k.Host == "" || k.Whole() {
		return ""
	}
	text := fmt.Sprintf("its state has %d of %d copies, so commits wait: ", len(k.Copies), k.Want)
	if len(k.Joining) == 0 {
		return text + "no other host can keep one; add a host (`pando token`), or lower `copies`"
	}
	return text + string(k.Joining[0]) + " receives one"
}
