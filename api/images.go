package api

import (
	"context"
	"fmt"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
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

// keeper returns the keeper of images of this server. It looks behind the veil, which has none.
func (h operators) keeper() (pando.ImageOperators, error) {
	ops := h.Operators
	if v, ok := ops.(veiled); ok {
		ops = v.Operators
	}
	if k, ok := ops.(pando.ImageOperators); ok {
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
}

// oneImage is an answer about one image.
type oneImage struct{ Body pando.ImageStatus }

func (h operators) pullImage(ctx context.Context, in *struct {
	Asking
	Body Pulling
}) (*oneImage, error) {
	k, err := h.keeper()
	if err != nil {
		return nil, err
	}
	i, err := k.PullImage(ctx, in.Body.Reference)
	return &oneImage{i}, err
}

func (h operators) removeImage(ctx context.Context, in *struct {
	Asking
	Digest string `path:"digest" maxLength:"100" doc:"sha256:…" example:"sha256:4cd3"`
}) (*nothing, error) {
	k, err := h.keeper()
	if err != nil {
		return nil, err
	}
	return nil, k.RemoveImage(ctx, in.Digest)
}
