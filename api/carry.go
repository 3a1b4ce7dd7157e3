package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"pando.run/pando"
)

// Files brings files of this host into its store of images. driver/sandbox/image implements it.
type Files interface {
	// Bundle returns a folder as a bundle of this host, and the files that it leaves out.
	Bundle(ctx context.Context, folder string) (b pando.Bundle, left []string, err error)
	// Resolve returns the image that a reference names now, with its digest.
	Resolve(
		ctx context.Context, by pando.Tenant, i pando.Image,
	) (pando.Image, pando.ImageConfig, error)
}

// leftHeader has the files that a bundle of another host leaves out, for the warning.
const leftHeader = "Pando-Left"

// Carry serves the operators' API of a host without a server. It brings the folder or the file that
// a request names into this host's store, names the digest in the request, and passes the request
// on to deploy, which waits longer than next. The server then takes the bytes from this host.
func Carry(f Files, next, deploy http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", next)
	for path, prepare := range map[string]func(context.Context, Files, *http.Request, []byte) (any,
		error){"POST /v1/services": carrySpec, "POST /v1/images": carryImage} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			var body bytes.Buffer
			if _, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, bodyBytesMax)); err != nil {
				fail(w, fmt.Errorf("the body: %w: at most %d bytes", pando.ErrTooLarge, bodyBytesMax), nil)
				return
			}
			changed, err := prepare(r.Context(), f, r, body.Bytes())
			text := body.Bytes()
			if err == nil && changed != nil {
				text, err = json.Marshal(changed)
			}
			if err != nil {
				fail(w, err, nil)
				return
			}
			r.Body, r.ContentLength = http.NoBody, int64(len(text))
			if len(text) > 0 {
				r.Body = readCloser{bytes.NewReader(text)}
			}
			deploy.ServeHTTP(w, r)
		})
	}
	return mux
}

// readCloser is a body in memory.
type readCloser struct{ *bytes.Reader }

// Close implements io.Closer.
func (readCloser) Close() error { return nil }

// carrySpec brings the bundle or the files of an image of a spec into the store of this host, and
// returns the spec with their digest. It returns nil for a spec without files, and for bad JSON,
// which the server explains. Words of a newer build stay in the spec.
func carrySpec(ctx context.Context, f Files, r *http.Request, body []byte) (any, error) {
	var fields map[string]json.RawMessage
	var s struct {
		Image  pando.Image  `json:"image"`
		Bundle pando.Bundle `json:"bundle"`
	}
	if json.Unmarshal(body, &fields) != nil || json.Unmarshal(body, &s) != nil {
		return nil, nil
	}
	word, value := "", any(nil)
	switch {
	case s.Image.Reference == "" && s.Bundle.Folder != "":
		b, left, err := f.Bundle(ctx, s.Bundle.Folder)
		if err != nil {
			return nil, err
		}
		for n := range left {
			left[n] = url.PathEscape(left[n])
		}
		r.Header.Set(leftHeader, strings.Join(left, ","))
		word, value = "bundle", b
	case s.Image.OfFiles() && s.Image.Digest == "":
		i, _, err := f.Resolve(ctx, "", s.Image)
		if err != nil {
			return nil, err
		}
		word, value = "image", i
	default:
		return nil, nil
	}
	var err error
	fields[word], err = json.Marshal(value)
	return fields, err
}

// carryImage does the same for a request to pull an image.
func carryImage(ctx context.Context, f Files, _ *http.Request, body []byte) (any, error) {
	var p Pulling
	if json.Unmarshal(body, &p) != nil || !(pando.Image{Reference: p.Reference}).OfFiles() {
		return nil, nil
	}
	i, _, err := f.Resolve(ctx, "", pando.Image{Reference: p.Reference})
	p.Digest, p.Host = i.Digest, i.Host
	return p, err
}

// carried checks the files of a request. Files of another host must have travelled, and its agent
// names them by their digest. Without one, the server would take its own files at the same path.
func carried(ctx context.Context, s pando.Spec) (pando.Spec, error) {
	m, member := callerOf(ctx)
	switch {
	case !member: // the server reads its own folder
		s.Bundle.Digest, s.Bundle.Host = "", ""
	case s.Bundle.Folder != "" && (s.Bundle.Digest == "" || s.Bundle.Host != m.Name),
		s.Image.OfFiles() && s.Image.Digest == "":
		return s, notCarried(m)
	}
	return s, nil
}

func notCarried(m pando.Member) error {
	return fmt.Errorf("%w: the files of host %s did not come with the request: an older pando runs "+
		"there; upgrade it, run `pando daemons restart`, then try again", pando.ErrInvalid, m.Name)
}

// leftOut returns the warning about files that a bundle leaves out, from the header of a request.
func leftOut(header string) []string {
	if header == "" {
		return nil
	}
	var left []string
	for name := range strings.SplitSeq(header, ",") {
		if plain, err := url.PathUnescape(name); err == nil {
			left = append(left, plain)
		}
	}
	return []string{pando.LeftOut(left)}
}
