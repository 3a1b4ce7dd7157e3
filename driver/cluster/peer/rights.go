package peer

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"pando.run/pando"
)

// ImageRightPath is the path at which an agent asks a server whether another host may have an image.
const ImageRightPath = "/control/image-right"

// ImageRightHandler serves the questions of agents about images.
func ImageRightHandler(may func(context.Context, pando.ImageQuestion) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := pando.ImageQuestion{Host: pando.HostName(r.FormValue("host")),
			Digest: r.FormValue("image")}
		var err error
		if text := r.FormValue("snapshot"); text != "" {
			q.Snapshot = &pando.SealedSnapshot{}
			err = json.Unmarshal([]byte(text), q.Snapshot)
		}
		switch {
		case err != nil:
			err = fmt.Errorf("%w: read a question about an image: %w", pando.ErrInvalid, err)
		case q.Host == "" || q.Digest == "":
			err = fmt.Errorf("%w: a question without a host or an image", pando.ErrInvalid)
		default:
			err = may(r.Context(), q)
		}
		answer(w, struct{}{}, err)
	})
}

func ofImage(q pando.ImageQuestion) (url.Values, error) {
	v := url.Values{"host": {string(q.Host)}, "image": {q.Digest}}
	if q.Snapshot == nil {
		return v, nil
	}
	text, err := json.Marshal(q.Snapshot)
	v.Set("snapshot", string(text))
	return v, err
}

// MayHaveImage asks the server on this host whether another host may have an image.
func (c Control) MayHaveImage(ctx context.Context, q pando.ImageQuestion) error {
	v, err := ofImage(q)
	if err != nil {
		return err
	}
	var done struct{}
	return c.Client.get(ctx, c.Server, ImageRightPath, v, &done)
}

// RemoteImageRight asks a server on another host whether a host may have an image.
func RemoteImageRight(ctx context.Context, by *http.Client, q pando.ImageQuestion) error {
	v, err := ofImage(q)
	if err != nil {
		return err
	}
	_, err = remotely[struct{}](ctx, by, ImageRightPath, v, "whether a host may have an image")
	return err
}
