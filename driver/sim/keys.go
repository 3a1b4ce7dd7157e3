package sim

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"pando.run/pando"
)

// pageMax is the largest number of keys in a page.
const pageMax = 512

// keys holds the keys of records in order, in pages. A key comes or goes, and a prefix is found, at
// the cost of one page.
type keys struct{ pages [][]pando.Key }

func keysOf(records map[pando.Key]pando.Record) keys {
	all := slices.Sorted(maps.Keys(records))
	return keys{slices.Collect(slices.Chunk(all, pageMax/2))}
}

// page returns the number of the page where a key belongs.
func (k *keys) page(key pando.Key) int {
	n, there := slices.BinarySearchFunc(k.pages, key, func(p []pando.Key, want pando.Key) int {
		return strings.Compare(string(p[0]), string(want))
	})
	if there {
		return n
	}
	return max(0, n-1)
}

func (k *keys) add(key pando.Key) {
	if len(k.pages) == 0 {
		k.pages = [][]pando.Key{{key}}
		return
	}
	n := k.page(key)
	at, there := slices.BinarySearch(k.pages[n], key)
	if there {
		return
	}
	p := slices.Insert(k.pages[n], at, key)
	if k.pages[n] = p; len(p) > pageMax {
		k.pages[n] = slices.Clone(p[:len(p)/2])
		k.pages = slices.Insert(k.pages, n+1, slices.Clone(p[len(p)/2:]))
	}
}

func (k *keys) drop(key pando.Key) {
	if len(k.pages) == 0 {
		return
	}
	n := k.page(key)
	at, there := slices.BinarySearch(k.pages[n], key)
	if !there {
		return
	}
	if k.pages[n] = slices.Delete(k.pages[n], at, at+1); len(k.pages[n]) == 0 {
		k.pages = slices.Delete(k.pages, n, n+1)
	}
}

// under yields the keys with a prefix in order.
func (k *keys) under(prefix pando.Key) iter.Seq[pando.Key] {
	return func(yield func(pando.Key) bool) {
		if len(k.pages) == 0 {
			return
		}
		n := k.page(prefix)
		at, _ := slices.BinarySearch(k.pages[n], prefix)
		for ; n < len(k.pages); n, at = n+1, 0 {
			for _, key := range k.pages[n][at:] {
				if !strings.HasPrefix(string(key), string(prefix)) || !yield(key) {
					return
				}
			}
		}
	}
}
