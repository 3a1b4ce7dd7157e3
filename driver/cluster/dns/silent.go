package dns

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"pando.run/pando"
)

// Silent records the resolvers that did not answer their newest question. It is safe for concurrent
// use.
type Silent struct {
	Clock pando.Clock

	mu sync.Mutex
	at map[string]time.Time // of the newest question without an answer, by host:port of a resolver
}

// note records whether a resolver answered. A nil Silent records nothing.
func (s *Silent) note(resolver string, answered bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if answered {
		delete(s.at, resolver)
		return
	}
	if s.at == nil {
		s.at = map[string]time.Time{}
	}
	s.at[resolver] = s.Clock.Now()
}

// String names the silent resolvers, or returns "".
func (s *Silent) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.Clock.Now()
	var all []string
	for _, resolver := range slices.Sorted(maps.Keys(s.at)) {
		all = append(all, fmt.Sprintf("%s (asked %s ago)", resolver,
			now.Sub(s.at[resolver]).Round(time.Second)))
	}
	return strings.Join(all, ", ")
}
