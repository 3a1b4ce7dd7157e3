package status

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"pando.run/pando"
)

// Unheard returns why a host is missing in an answer that all hosts give together. Only a host that
// was not reached "does not answer"; any other error is its answer.
func Unheard(h pando.HostName, err error) string {
	switch {
	case errors.Is(err, pando.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("host %s does not answer: %v", h, err)
	case errors.Is(err, context.Canceled):
		return fmt.Sprintf("host %s was not asked to the end: %v", h, err)
	}
	return fmt.Sprintf("host %s answers with an error: %v", h, err)
}

// Cut returns a text of a host or a program, short enough for a record.
func Cut(text string) string {
	if len(text) > textBytesMax {
		text = text[:textBytesMax] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// textBytesMax is the kept length of such a text.
const textBytesMax = 400
