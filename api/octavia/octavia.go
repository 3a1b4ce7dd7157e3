// Package octavia translates between the objects of OpenStack's load balancers (Octavia, version 2)
// and specs of services. A load balancer is a service, its listeners are the ports, and the members
// of its pools are the external endpoints.
//
// Everything here is a function of a document and a request. It never serves HTTP, and it reads no
// clock.
package octavia

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"pando.run/pando"
)

// Label is the label of a spec that has the document of its load balancer.
const Label = "octavia"

// Bounds of one load balancer. Its document is stored with each revision of its service.
const (
	DocumentBytesMax = 64 << 10
	ListenersMax     = 32
	PoolsMax         = 32
	textMax          = 255 // bytes of a name, a description or a tag
	tagsMax          = 16
	weightMax        = 256
)

// Document is a load balancer with its listeners and pools. It has the words that a spec lacks.
type Document struct {
	Head
	key       Key
	Subnet    string     `json:"subnet,omitempty"`  // vip_subnet_id, which has no effect
	Network   string     `json:"network,omitempty"` // vip_network_id, likewise
	Newest    uint64     `json:"newest,omitempty"`  // the number of the newest object below
	Listeners []Listener `json:"listeners,omitempty"`
	Pools     []Pool     `json:"pools,omitempty"`
}

// Head is the common part of all objects.
type Head struct {
	// Number is the object's within its load balancer, from 1 on. No number is used twice. 0: the
	// load balancer itself.
	Number      uint64   `json:"n,omitempty"`
	Name        string   `json:"name,omitempty"`
	Description string   `json:"text,omitempty"`
	Tags        []string `json:"tags,omitempty"`
	Down        bool     `json:"down,omitempty"` // admin_state_up is false
}

// Listener is a published port.
type Listener struct {
	Head
	Protocol string `json:"protocol"` // TCP or UDP
	Port     uint16 `json:"port"`
	Pool     uint64 `json:"pool,omitempty"` // the number of its default pool; 0: none
}

// Pool is a list of members.
type Pool struct {
	Head
	Protocol  string `json:"protocol"`
	Algorithm string `json:"by"` // lb_algorithm
	// Persistence is the type of session_persistence, SOURCE_IP. "": none.
	Persistence string   `json:"persistence,omitempty"`
	Members     []Member `json:"members,omitempty"`
	Monitor     *Monitor `json:"monitor,omitempty"` // nil: none
}

// Member is a port of a machine.
type Member struct {
	Head
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port"`
	Weight  int        `json:"weight"` // 0 to 256; 0: no new connections
	Subnet  string     `json:"subnet,omitempty"`
}

// Monitor is the probe of a pool's members. Times are in seconds.
type Monitor struct {
	Head
	Type    string `json:"type"` // TCP, HTTP, UDP-CONNECT or PING
	Delay   int    `json:"delay"`
	Timeout int    `json:"timeout"`
	Rise    int    `json:"rise"`            // max_retries, which has no effect
	Fall    int    `json:"fall"`            // max_retries_down
	Path    string `json:"path,omitempty"`  // url_path
	Codes   string `json:"codes,omitempty"` // expected_codes, as given
}

// Kind is the kind of an object. Its number is part of each id.
type Kind byte

// Kinds of objects.
const (
	LoadBalancerKind Kind = iota
	ListenerKind
	PoolKind
	MemberKind
	MonitorKind
)

// Kinds lists every kind.
var Kinds = []Kind{LoadBalancerKind, ListenerKind, PoolKind, MemberKind, MonitorKind}

// String returns the name of the kind in a body.
func (k Kind) String() string {
	return [...]string{"loadbalancer", "listener", "pool", "member", "healthmonitor"}[k]
}

// Key is the random part of a load balancer's id. It names the service too, so an id of any object
// leads to its service without a search.
type Key [8]byte

// The version and the variant of a UUID (RFC 9562).
const version, versionMask, variant = 0x80, 0x0f, 0x80

// NewKey returns the key with random bytes.
func NewKey(random [8]byte) Key {
	random[6] = version | random[6]&versionMask
	return random
}

const prefix = "lb-"

// Service returns the name of the service.
func (k Key) Service() pando.ServiceName {
	return pando.ServiceName(prefix + hex.EncodeToString(k[:]))
}

// KeyOf returns the key of the load balancer that a service may be.
func KeyOf(s pando.ServiceName) (k Key, ok bool) {
	text, ok := strings.CutPrefix(string(s), prefix)
	b, err := hex.DecodeString(text)
	if !ok || err != nil || len(b) != len(k) || hex.EncodeToString(b) != text {
		return k, false
	}
	k = Key(b)
	return k, k == NewKey(k)
}

// ID returns the id of an object: a UUID of version 8 with the key, the kind and the number.
func (k Key) ID(kind Kind, number uint64) string {
	var b [16]byte
	copy(b[:], k[:])
	binary.BigEndian.PutUint64(b[8:], number)
	b[8], b[9] = variant, byte(kind)
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// ParseID returns the parts of an object's id. ErrNotFound: no object has such an id.
func ParseID(kind Kind, id string) (k Key, number uint64, err error) {
	b, bad := hex.DecodeString(strings.ReplaceAll(id, "-", ""))
	if bad == nil && len(b) == 16 {
		k = Key(b[:8])
		number = binary.BigEndian.Uint64(b[8:]) & (1<<48 - 1)
	}
	if k != NewKey(k) || k.ID(kind, number) != strings.ToLower(id) {
		return k, 0, notFound(kind, id)
	}
	return k, number, nil
}

func notFound(kind Kind, id string) error {
	return fmt.Errorf("%s %.40q: %w; GET the list of its kind", kind, id, pando.ErrNotFound)
}

// Of returns the document of a service. ok is false if the service is no load balancer.
func Of(s *pando.Spec) (d Document, ok bool) {
	if s == nil {
		return d, false
	}
	if d.key, ok = KeyOf(s.Name); !ok {
		return d, false
	}
	return d, json.Unmarshal([]byte(s.Labels[Label]), &d) == nil
}

// Listener returns a listener by its number.
func (d *Document) Listener(n uint64) (*Listener, error) {
	for i := range d.Listeners {
		if d.Listeners[i].Number == n {
			return &d.Listeners[i], nil
		}
	}
	return nil, gone(ListenerKind, n)
}

// Pool returns a pool by its number.
func (d *Document) Pool(n uint64) (*Pool, error) {
	for i := range d.Pools {
		if d.Pools[i].Number == n {
			return &d.Pools[i], nil
		}
	}
	return nil, gone(PoolKind, n)
}

// PoolOfMonitor returns the pool of a health monitor by the monitor's number.
func (d *Document) PoolOfMonitor(n uint64) (*Pool, error) {
	for i := range d.Pools {
		if m := d.Pools[i].Monitor; m != nil && m.Number == n {
			return &d.Pools[i], nil
		}
	}
	return nil, gone(MonitorKind, n)
}

// Member returns a member by its number.
func (p *Pool) Member(n uint64) (*Member, error) {
	for i := range p.Members {
		if p.Members[i].Number == n {
			return &p.Members[i], nil
		}
	}
	return nil, gone(MemberKind, n)
}

func gone(kind Kind, n uint64) error {
	return fmt.Errorf("%s %d of this load balancer: %w; GET the list of its kind", kind, n,
		pando.ErrNotFound)
}

// own returns the number in the id of an object of this load balancer.
func (d *Document) own(kind Kind, id string) (uint64, error) {
	key, n, err := ParseID(kind, id)
	if err == nil && key != d.key {
		err = fmt.Errorf("%s %s belongs to another load balancer: %w; name one of this", kind, id,
			pando.ErrNotFound)
	}
	return n, err
}

// next returns the number of a new object.
func (d *Document) next() uint64 {
	d.Newest++
	return d.Newest
}
