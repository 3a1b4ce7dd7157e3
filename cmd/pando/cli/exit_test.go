package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"pando.run/pando"
	"pando.run/pando/spec"
)

func TestExitCodesShowTheCause(t *testing.T) {
	wrapped := func(err error) error { return fmt.Errorf("deploy web: %w", err) }
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0}, {errors.New("a defect"), 1}, {Usagef("x"), 2}, {Code(42), 42},
		{pando.ErrInvalid, 3}, {spec.Problems{{File: "a.yaml"}}, 3}, {pando.ErrTooLarge, 3},
		{pando.ErrNotFound, 4}, {fs.ErrNotExist, 4}, {pando.ErrRefused, 5}, {pando.ErrNoRoom, 5},
		{pando.ErrConflict, 6}, {pando.ErrExists, 6}, {pando.ErrFenced, 6}, {pando.ErrLost, 6},
		{pando.ErrNotReady, 7}, {context.DeadlineExceeded, 7},
		{pando.ErrUnavailable, 8}, {pando.ErrStoreFull, 9}, {pando.ErrForbidden, 10},
		{pando.ErrUnsupported, 11}, {pando.ErrUnreachable, 13}, {pando.ErrBusy, 13},
		{fmt.Errorf("registry r: %w", pando.ErrUnreachable), 13}, {context.Canceled, 130},
	} {
		if got := CodeOf(c.err); got != c.want {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.want)
		}
		if c.err != nil && CodeOf(wrapped(c.err)) != c.want {
			t.Errorf("%v, wrapped: exit code %d, want %d", c.err, CodeOf(wrapped(c.err)), c.want)
		}
	}
}
