package peer

import (
	"errors"
	"testing"

	"pando.run/pando"
)

func TestRequestsAboutSnapshotsArriveAtTheirHost(t *testing.T) {
	to, c := serve(t, &host{}, "unix")
	web := pando.DefaultService("web")
	for _, plain := range []bool{false, true} {
		st, err := c.Snapshot(t.Context(), to, pando.SnapshotAsk{Instance: "web-1", Plain: plain})
		if err != nil || st.Instance != "web-1" || st.Encrypted == plain || st.Seal != "proof" {
			t.Errorf("plain %v: %+v, %v", plain, st, err)
		}
	}
	for _, s := range []pando.ServiceKey{{}, web} {
		all, err := c.Snapshots(t.Context(), to, s)
		if err != nil || len(all) != 1 || all[0].Service != s {
			t.Errorf("snapshots of %v: %+v, %v", s, all, err)
		}
	}
	if err := c.DropSnapshot(t.Context(), to, web, "sha256:1"); err != nil {
		t.Error(err)
	}
	for digest, want := range map[string]error{"sha256:2": pando.ErrNotFound, "": pando.ErrInvalid} {
		if err := c.DropSnapshot(t.Context(), to, web, digest); !errors.Is(err, want) {
			t.Errorf("drop %q: %v, want %v", digest, err, want)
		}
	}
	to, c = serve(t, &host{err: pando.ErrRefused}, "unix")
	_, err := c.Snapshot(t.Context(), to, pando.SnapshotAsk{Instance: "web-1"})
	if !errors.Is(err, pando.ErrRefused) {
		t.Errorf("a refused snapshot: %v", err)
	}
}
