package status

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"pando.run/pando"
)

// A host that refuses is not called silent, and a silent one not a refusing one.
func TestAHostThatRefusesIsNotSilent(t *testing.T) {
	for want, err := range map[string]error{
		"does not answer":          fmt.Errorf("ask: %w: host host2", pando.ErrUnreachable),
		"does not answer: context": context.DeadlineExceeded,
		"was not asked to the end": context.Canceled,
		"answers with an error":    fmt.Errorf("%w: service name", pando.ErrInvalid),
		"error: forbidden":         pando.ErrForbidden,
	} {
		if got := Unheard("host2", err); !strings.Contains(got, "host host2 ") ||
			!strings.Contains(got, want) {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}
