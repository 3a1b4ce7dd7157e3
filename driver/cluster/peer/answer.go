package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	"pando.run/pando"
	"pando.run/pando/api/problem"
)

// hostAnswerMax bounds the answer of a host or of a server. The largest are counters: 300 bytes for
// each endpoint that a host steers. A broken or hostile host would otherwise fill the memory of the
// leader.
const hostAnswerMax = 32 << 20

// restMax bounds the bytes after an answer that are read so that its connection is kept.
const restMax = 4 << 10

// readAnswer decodes an answer of at most so many bytes.
func readAnswer(body io.Reader, most int64, into any) error {
	in := &io.LimitedReader{R: body, N: most + 1}
	err := json.NewDecoder(in).Decode(into)
	if err == nil {
		_, err = io.CopyN(io.Discard, in, restMax)
		if err == io.EOF {
			err = nil
		}
	}
	if in.N <= 0 {
		return fmt.Errorf("%w: at most %d bytes", pando.ErrTooLarge, most)
	}
	return err
}

// unreadable returns the error of an answer of a host that cannot be read. The host did answer, unless
// the connection broke.
func unreadable(ctx context.Context, h pando.Host, err error) error {
	var wire net.Error
	if ctx.Err() != nil || errors.As(err, &wire) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, io.EOF) {
		return outOfReach(ctx, h, err)
	}
	return problem.Remote(fmt.Sprintf("the answer of host %s at %s cannot be read: %v", h.Name,
		h.Endpoint, err), pando.ErrUnavailable)
}
