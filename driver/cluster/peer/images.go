package peer

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"

	"pando.run/pando"
)

const imagePath = "/peer/image"

// snapshotPath is the path of the description of a snapshot among the images.
const snapshotPath = imagePath + "/snapshot"

// Blob opens a blob of an image of a host's store, from an offset on.
func (c *Client) Blob(
	ctx context.Context, h pando.Host, image, digest string, offset int64,
) (io.ReadCloser, error) {
	return c.call(ctx, h, http.MethodGet, imagePath, url.Values{"image": {image},
		"digest": {digest}, "from": {strconv.FormatInt(offset, 10)}}, nil)
}

// Described returns the description of a snapshot in a host's store.
func (c *Client) Described(
	ctx context.Context, h pando.Host, digest string,
) (out pando.SealedSnapshot, err error) {
	return out, c.get(ctx, h, snapshotPath, url.Values{"image": {digest}}, &out)
}

// Images is a host's store of images, for other hosts. by is the host that asks, or "" for a server
// and for root of this host.
type Images interface {
	// Blob opens a blob of an image that the host may have. ErrForbidden: control has placed nothing
	// with the image there.
	Blob(ctx context.Context, by pando.HostName, image, digest string) (*os.File, error)
	// Described returns the description of a snapshot that the host may have.
	Described(ctx context.Context, by pando.HostName, digest string) (pando.SealedSnapshot, error)
}

// WithImages adds the blobs of this host's store of images to its handler for peers.
func WithImages(next http.Handler, images Images) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", next)
	mux.HandleFunc("GET "+snapshotPath, func(w http.ResponseWriter, r *http.Request) {
		st, err := images.Described(r.Context(), Asker(r.Context()), r.FormValue("image"))
		answer(w, st, err)
	})
	mux.HandleFunc("GET "+imagePath, func(w http.ResponseWriter, r *http.Request) {
		from, err := number(r, "from")
		if err == nil && from < 0 {
			err = fmt.Errorf("%w: from %d", pando.ErrInvalid, from)
		}
		var f *os.File
		if err == nil {
			f, err = images.Blob(r.Context(), Asker(r.Context()), r.FormValue("image"), r.FormValue("digest"))
		}
		if err != nil {
			writeProblem(w, err)
			return
		}
		defer f.Close()
		if _, err := f.Seek(from, io.SeekStart); err != nil {
			writeProblem(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = io.Copy(w, f) // the asker may have gone
	})
	return mux
}
