package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/peer"
	"pando.run/pando/driver/sandbox/image"
)

// A member gets the blobs of images that control has placed on it, and of no others. A captured host
// read the memory of every tenant's snapshots before.
func TestAHostLendsImagesByTheWordOfControl(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: layers have owners")
	}
	s, err := image.Open(image.Config{Dir: t.TempDir(), Host: "h1", Clock: clock.Clock{},
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	seal := pando.SnapshotKeys{Seal: "key"}
	kept, err := image.Snapshots{Store: s}.Keep(t.Context(), pando.SnapshotStatus{
		Service: pando.DefaultService("web"), Instance: "web-1"}, seal,
		func(dir string, _ *pando.SnapshotStatus) error {
			return os.WriteFile(filepath.Join(dir, "pages-1.img"), []byte("memory"), 0o600)
		})
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	l := newLender(s, func(_ context.Context, q pando.ImageQuestion) error {
		asked++
		if q.Host != "h2" || q.Digest != kept.Digest || q.Snapshot == nil || !seal.Seal.Proves(*q.Snapshot) {
			return fmt.Errorf("%w: %+v", pando.ErrForbidden, q)
		}
		return nil
	})
	now := time.Unix(1e9, 0)
	l.now = func() time.Time { return now }
	h := peer.WithImages(http.NotFoundHandler(), l)
	get := func(by pando.HostName, path string) int {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, path, nil)
		h.ServeHTTP(w, r.WithContext(peer.WithAsker(r.Context(), by)))
		return w.Code
	}
	blob := "/peer/image?from=0&image=" + kept.Digest + "&digest=" + kept.Digest
	for range 3 {
		if code := get("h2", blob); code != http.StatusOK {
			t.Errorf("the host of its service: %d", code)
		}
	}
	if asked != 1 {
		t.Errorf("control was asked %d times for one pull", asked)
	}
	for _, path := range []string{blob, "/peer/image/snapshot?image=" + kept.Digest} {
		if code := get("h3", path); code != http.StatusForbidden {
			t.Errorf("a host without it gets %s: %d", path, code)
		}
		if code := get("", path); code != http.StatusOK {
			t.Errorf("a server gets %s: %d", path, code)
		}
	}
	// One image is no way to the blobs of another.
	if code := get("h2", "/peer/image?from=0&image=&digest="+kept.Digest); code == http.StatusOK {
		t.Error("a blob without its image")
	}
	asked, now = 0, now.Add(lentFor)
	if get("h2", blob); asked != 1 {
		t.Errorf("after %s control was asked %d times", lentFor, asked)
	}
	l.ask = func(context.Context, pando.ImageQuestion) error { return pando.ErrUnavailable }
	if _, err := l.Described(t.Context(), "h4", kept.Digest); !errors.Is(err, pando.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
}
