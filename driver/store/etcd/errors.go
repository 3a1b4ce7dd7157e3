package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"pando.run/pando"
)

// sentinel maps an error of etcd to an error of package pando.
func sentinel(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	switch ended := ctx.Err(); {
	case errors.Is(ended, context.Canceled):
		return ended
	case errors.Is(ended, context.DeadlineExceeded):
		return fmt.Errorf("the store is %w: no answer in time: %w", pando.ErrUnavailable, ended)
	}
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace), isFull(err):
		return fullError(err)
	case errors.Is(err, rpctypes.ErrCompacted):
		return pando.ErrCompacted
	case errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrTooManyOps):
		return fmt.Errorf("%w: %w", pando.ErrTooLarge, err)
	case errors.Is(err, rpctypes.ErrDuplicateKey), errors.Is(err, rpctypes.ErrEmptyKey):
		return fmt.Errorf("%w: %w", pando.ErrInvalid, err)
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("%w: %w", pando.ErrForbidden, err)
	case isForbidden(err):
		return fmt.Errorf("%w: %s", pando.ErrForbidden,
			strings.TrimPrefix(status.Convert(err).Message(), pando.ErrForbidden.Error()+": "))
	case unreachable(err):
		return fmt.Errorf("the store is %w: %w", pando.ErrUnavailable, err)
	}
	return err
}

// unreachable reports whether the store gave no answer at all, as opposed to an answer with an
// error.
func unreachable(err error) bool {
	if errors.Is(err, clientv3.ErrNoAvailableEndpoints) || clientv3.IsConnCanceled(err) ||
		errors.Is(err, context.Canceled) {
		return true
	}
	code := status.Code(err)
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		code = e.Code()
	}
	return code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Canceled
}

// isForbidden reports whether the gate refused the call.
func isForbidden(err error) bool { return status.Code(err) == codes.PermissionDenied }

// isFull reports whether the guard of another process refused the write. Its error arrives as text.
func isFull(err error) bool {
	return status.Code(err) == codes.ResourceExhausted &&
		strings.HasPrefix(status.Convert(err).Message(), pando.ErrStoreFull.Error())
}

// fullError keeps the guard's message and replaces the message of etcd's own quota alarm.
func fullError(err error) error {
	if text, ok := strings.CutPrefix(status.Convert(err).Message(), pando.ErrStoreFull.Error()); ok {
		return fmt.Errorf("%w%s", pando.ErrStoreFull, text)
	}
	return fmt.Errorf("%w: its database has reached its quota; old history is being compacted, and "+
		"writes continue after that", pando.ErrStoreFull)
}
