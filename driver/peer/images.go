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

// Blob opens a blob of a host's store of images, from an offset on.
func (c *Client) Blob(
	ctx context.Context, h pando.Host, digest string, offset int64,
) (io.ReadCloser, error) {
	return c.call(ctx, h, http.MethodGet, imagePath, url.Values{
		"digest": {digest}, "from": {strconv.FormatInt(offset, 10)}}, nil)
}

// WithImages adds the blobs of this host's store of images to its handler for peers. open returns a
// blob that was checked, or ErrNotFound.
func WithImages(next http.Handler, open func(digest string) (*os.File, error)) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", next)
	mux.HandleFunc("GET "+imagePath, func(w http.ResponseWriter, r *http.Request) {
		from, err := number(r, "from")
		if err == nil && from < 0 {
			err = fmt.Errorf("%w: from %d", pando.ErrInvalid, from)
		}
		var f *os.File
		if err == nil {
			f, err = open(r.FormValue("digest"))
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
