package api

import (
	"context"
	"fmt"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
	"pando.run/pando/access"
)

// imageRoutes adds the operations about the images of the server's host.
func (h operators) imageRoutes(a huma.API) {
	route(a, "list-images", "GET /v1/images",
		"List the images of the server's host, the last used first.", h.listImages)
	route(a, "pull-image", "POST /v1/images",
		"Bring an image to the server's host. Other hosts get it there when they need it.",
		h.pullImage)
	route(a, "remove-image", "DELETE /v1/images/{digest}",
		"Delete an image that no service and no instance uses from the server's host.", h.removeImage)
}

// behind returns the operators behind the veil, which has no optional parts.
func behind(ops access.Operators) access.Operators {
	if v, ok := ops.(veiled); ok {
		ops = v.Operators
	}
	if f, ok := ops.(fenced); ok {
		ops = f.Operators
	}
	return ops
}

// keeper returns the keeper of images of this server.
func (h operators) keeper() (pando.ImageOperators, error) {
	if k, ok := behind(h.operators).(pando.ImageOperators); ok {
		return k, nil
	}
	return nil, fmt.Errorf("%w: this server keeps no images", pando.ErrUnsupported)
}

func (h operators) listImages(
	ctx context.Context, _ *nothing,
) (*listOf[pando.ImageStatus], error) {
	k, err := h.keeper()
	if err != nil {
		return nil, err
	}
	return all(k.Images(ctx))
}

// Pulling is the body that names an image.
type Pulling struct {
	Reference string `json:"reference" maxLength:"4096" doc:"as image in a spec" example:"web:1.2"`
	// Digest and Host name files that the agent of another host has read.
	Digest string         `json:"digest,omitempty" maxLength:"100" doc:"sha256:…, of files"`
	Host   pando.HostName `json:"host,omitempty" doc:"the host that has read the files"`
}

// oneImage is an answer about one image.
type oneImage struct{ Body pando.ImageStatus }

func (h operators) pullImage(ctx context.Context, in *struct {
	Asking
	Body Pulling
}) (*oneImage, error) {
	k, err := h.keeper()
	if err == nil {
		_, err = in.by(ctx)
	}
	if err != nil {
		return nil, err
	}
	want := pando.Image{Reference: in.Body.Reference, Digest: in.Body.Digest, Host: in.Body.Host}
	if m, member := callerOf(ctx); member && want.OfFiles() && want.Digest == "" {
		return nil, notCarried(m)
	}
	i, err := k.PullImage(ctx, want)
	return &oneImage{i}, err
}

func (h operators) removeImage(ctx context.Context, in *struct {
	Asking
	Digest string `path:"digest" maxLength:"100" doc:"sha256:…" example:"sha256:4cd3"`
}) (*nothing, error) {
	k, err := h.keeper()
	if err == nil {
		_, err = in.by(ctx)
	}
	if err != nil {
		return nil, err
	}
	return nil, k.RemoveImage(ctx, in.Digest)
}
