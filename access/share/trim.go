package share

import (
	"iter"
	"slices"
)

// Piece is a thing that can go to make room: a log, an image, a record.
type Piece[O comparable] struct {
	Owner O
	Size  int64 // in the unit of the caller
}

// Trim yields the positions of the pieces that go until the rest fits a bound. It takes the first
// piece of the owner with the most, again and again. So an owner within its part of the bound keeps
// everything. The caller orders the pieces: those that go first come first.
func Trim[O comparable](pieces []Piece[O], most int64) iter.Seq[int] {
	return func(yield func(int) bool) {
		var owners []O // in the order of their first pieces, so that a tie has one answer
		size, queues, all := map[O]int64{}, map[O][]int{}, int64(0)
		for n, p := range pieces {
			if _, known := queues[p.Owner]; !known {
				owners = append(owners, p.Owner)
			}
			queues[p.Owner] = append(queues[p.Owner], n)
			size[p.Owner] += p.Size
			all += p.Size
		}
		for all > most {
			owners = slices.DeleteFunc(owners, func(o O) bool { return len(queues[o]) == 0 })
			if len(owners) == 0 {
				return
			}
			o := slices.MaxFunc(owners, func(a, b O) int { return int(min(max(size[a]-size[b], -1), 1)) })
			n := queues[o][0]
			queues[o] = queues[o][1:]
			size[o] -= pieces[n].Size
			all -= pieces[n].Size
			if !yield(n) {
				return
			}
		}
	}
}

// Newest returns the entries of a list that stay within a number of them, oldest first. The oldest of
// the owner with the most goes, again and again.
func Newest[E any, O comparable](list []E, most int, owner func(E) O) []E {
	if len(list) <= most {
		return list
	}
	pieces := make([]Piece[O], len(list))
	for n, e := range list {
		pieces[n] = Piece[O]{owner(e), 1}
	}
	gone := map[int]bool{}
	for n := range Trim(pieces, int64(most)) {
		gone[n] = true
	}
	var out []E
	for n, e := range list {
		if !gone[n] {
			out = append(out, e)
		}
	}
	return out
}
