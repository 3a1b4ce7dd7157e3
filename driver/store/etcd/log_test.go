package etcd

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// Errors of etcd are passed on, with two exceptions. These are the first error of every new store,
// and the error of a store that is closed during its start.
func TestErrorsArePassedOn(t *testing.T) {
	var b bytes.Buffer
	log := quiet(slog.New(slog.NewTextHandler(&b, nil)))
	log.Error("failed to update storage version",
		zap.Error(errors.New("cannot detect storage schema version: missing confstate information")))
	log.Warn("slow")
	log.Error("setting up serving failed",
		zap.Error(&net.OpError{Op: "accept", Net: "unix", Err: net.ErrClosed}))
	if b.Len() > 0 {
		t.Errorf("a store at rest logs %q", &b)
	}
	log.Error("failed to update storage version",
		zap.Error(errors.New("cannot detect storage schema version: the file is damaged")))
	log.Error("failed to write", zap.Error(errors.New("input/output error")))
	for _, want := range []string{"the file is damaged", "input/output error"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in %q", want, &b)
		}
	}
}
