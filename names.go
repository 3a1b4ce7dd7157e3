package pando

import (
	"fmt"
	"regexp"
	"strings"
)

// Names of the nouns. Each is a lower-case DNS label, so that it can stand in a key, a path, a host name and a URL.
type (
	Tenant      string
	ServiceName string
	HostName    string
	InstanceID  string
	IntentID    string
)

var label = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,51}[a-z0-9])?$`)

// CheckLabel reports why s cannot be the name of a kind of thing ("service", "host", …), or nil.
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

// String is tenant/name, or the bare name for the default tenant.
func (k ServiceKey) String() string {
	if k.Tenant == DefaultTenant {
		return string(k.Name)
	}
	return string(k.Tenant) + "/" + string(k.Name)
}

// ParseServiceKey reads what ServiceKey.String prints.
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

// Nearest is the known word that was probably meant by a mistyped one, "" when none is near.
func Nearest(word string, known []string) string {
	best, distance := "", 1+max(1, len(word)/3)
	for _, k := range known {
		if d := levenshtein(word, k); d < distance {
			best, distance = k, d
		}
	}
	return best
}

// levenshtein is the number of letters to change, add or drop to make a into b.
func levenshtein(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			swap := corner
			if a[i] != b[j] {
				swap++
			}
			corner = row[j+1]
			row[j+1] = min(swap, row[j]+1, corner+1)
		}
	}
	return row[len(b)]
}
