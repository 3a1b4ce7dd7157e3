package bolt

import (
	"sync"

	"pando.run/pando"
)

// cacheBytesMax bounds the memory of recently used objects.
const cacheBytesMax = 8 << 20

// cacheEntryBytes is the size of an entry without its body. Most objects are small.
const cacheEntryBytes = 224

// cache keeps recently used objects in two generations. A used object moves to the younger one.
// When the younger one is full, it replaces the older one, and the objects left there are dropped.
type cache struct {
	mu         sync.Mutex
	young, old map[pando.ObjectID]pando.Object
	bytes      int // of the younger generation
}

func (c *cache) get(id pando.ObjectID) (pando.Object, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o, ok := c.young[id]; ok {
		return o, true
	}
	o, ok := c.old[id]
	if ok {
		c.add(o)
	}
	return o, ok
}

func (c *cache) put(o pando.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(o)
}

func (c *cache) add(o pando.Object) {
	if _, ok := c.young[o.ID]; ok || len(o.Body) > cacheBytesMax/8 {
		return
	}
	if c.bytes += len(o.Body) + cacheEntryBytes; c.bytes > cacheBytesMax/2 || c.young == nil {
		c.old, c.young, c.bytes = c.young, map[pando.ObjectID]pando.Object{}, len(o.Body)+cacheEntryBytes
	}
	c.young[o.ID] = o
}

func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.young, c.old, c.bytes = nil, nil, 0
}
