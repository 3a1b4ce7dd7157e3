package api

import (
	"context"
	"fmt"

	"pando.run/pando/access"
	"pando.run/pando/access/share"
)

// listenersBound bounds the callers that hold an endless answer of the operators' API: a watch, or
// logs. An owner is a tenant, by all its tokens together, or another host.
var listenersBound = share.Bound{Total: 1024, Each: 64, Reserve: 256}

// seated lets only so many callers hold an endless answer at the same time.
func seated[I any](
	seats *share.Pool[string], begin func(context.Context, *I) (func(*sender), error),
) func(context.Context, *I) (func(*sender), error) {
	return func(ctx context.Context, in *I) (func(*sender), error) {
		hold, err := seatOf(ctx, seats)
		if err != nil {
			return nil, err
		}
		do, err := begin(ctx, in)
		if err != nil {
			hold.Close()
			return nil, err
		}
		return func(to *sender) {
			defer hold.Close()
			do(to)
		}, nil
	}
}

// seatOf takes a seat for the caller of a request.
func seatOf(ctx context.Context, seats *share.Pool[string]) (*share.Hold[string], error) {
	owner := ""
	if t, ok := access.TokenOf(ctx); ok {
		owner = "tenant " + string(t.Tenant)
	} else if m, ok := callerOf(ctx); ok {
		owner = "host " + string(m.Name)
	}
	var hold *share.Hold[string]
	var err error
	if owner == "" {
		owner = "an operator"
		hold, err = seats.TakeAsOperator(1)
	} else {
		hold, err = seats.Take(owner, 1)
	}
	if err != nil {
		return nil, fmt.Errorf("one more open watch or log of %s is %w; end one of them, such as a "+
			"`pando watch` or a `pando logs -f`", owner, err)
	}
	return hold, nil
}
