package pando

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
)

// Names of the nouns. Each is a lower-case DNS label, so it fits into a key, a path, a host name
// and a URL.
type (
	Tenant      string
	ServiceName string
	HostName    string
	InstanceID  string
	IntentID    string
)

var label = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,51}[a-z0-9])?$`)

// CheckLabel returns nil if s can name a thing of this kind ("service", "host", …), else the
// reason.
func CheckLabel(kind, s string) error {
	if label.MatchString(s) {
		return nil
	}
	return fmt.Errorf("%w: %s name %q: want 1 to 53 of a-z, 0-9 and '-', beginning with a letter and not ending in '-'", ErrInvalid, kind, s)
}

// ServiceKey names a service across tenants.
type ServiceKey struct {
	Tenant Tenant      `json:"tenant"`
	Name   ServiceName `json:"name"`
}

// DefaultService returns the key of a service of the default tenant.
func DefaultService(name ServiceName) ServiceKey {
	return ServiceKey{Tenant: DefaultTenant, Name: name}
}

// String returns tenant/name, or the bare name for the default tenant.
func (k ServiceKey) String() string {
	if k.Tenant == DefaultTenant {
		return string(k.Name)
	}
	return string(k.Tenant) + "/" + string(k.Name)
}

// Compare orders services by tenant, then by name.
func (k ServiceKey) Compare(o ServiceKey) int {
	return cmp.Or(cmp.Compare(k.Tenant, o.Tenant), cmp.Compare(k.Name, o.Name))
}

// ParseServiceKey reads the form that ServiceKey.String prints.
func ParseServiceKey(s string) (ServiceKey, error) {
	k := ServiceKey{Tenant: DefaultTenant, Name: ServiceName(s)}
	if tenant, name, ok := strings.Cut(s, "/"); ok {
		k = ServiceKey{Tenant: Tenant(tenant), Name: ServiceName(name)}
	}
	if err := CheckLabel("tenant", string(k.Tenant)); err != nil {
		return k, err
	}
	return k, CheckLabel("service", string(k.Name))
}

// Nearest returns the word of known that a mistyped word probably meant, or "" if none is near.
func Nearest(word string, known []string) string {
	best, distance := "", 1+max(1, len(word)/3)
	for _, k := range known {
		if len(word) >= 3 && strings.HasPrefix(k, word) { // as env is environment
			return k
		}
		if d := slips(word, k); d < distance {
			best, distance = k, d
		}
	}
	return best
}

// slips counts the letters to change, add, drop or swap with their neighbour to turn a into b.
func slips(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			change := last[j]
			if a[i] != b[j] {
				change++
			}
			row[j+1] = min(change, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
