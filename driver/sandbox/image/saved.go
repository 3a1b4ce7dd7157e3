package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"pando.run/pando"
)

// savedEntriesMax bounds the entries of a file of `docker save`. A reader walks all of them to find each
// layer. A layer has at most four.
const savedEntriesMax = 8 * layersMax

// listName is the entry of a file of `docker save` that names its images.
const listName = "manifest.json"

// checkSaved returns an error if a file of `docker save` has more than its bounds. Its reader trusts it: it
// takes the list of images and the configuration into memory, whatever their sizes.
func checkSaved(ctx context.Context, file string) error {
	var list tarball.Manifest
	err := walkSaved(ctx, file, listName, func(r io.Reader) error {
		return json.NewDecoder(r).Decode(&list)
	})
	switch {
	case err != nil:
		return err
	case len(list) != 1:
		return fmt.Errorf("%w: it has %d images", pando.ErrInvalid, len(list))
	case len(list[0].Layers) > layersMax:
		return fmt.Errorf("%w: %d layers: want at most %d", pando.ErrTooLarge, len(list[0].Layers), layersMax)
	}
	return walkSaved(ctx, file, list[0].Config, func(io.Reader) error { return nil })
}

// walkSaved walks a whole archive, and passes the entry of a name on, which is small and no link.
func walkSaved(ctx context.Context, file, name string, found func(io.Reader) error) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	in, seen := tar.NewReader(f), false
	for n := 0; ctx.Err() == nil; n++ {
		h, err := in.Next()
		switch {
		case errors.Is(err, io.EOF) && !seen:
			return fmt.Errorf("%w: it has no %q", pando.ErrInvalid, name)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%w: %w", pando.ErrInvalid, err)
		case n >= savedEntriesMax:
			return fmt.Errorf("%w: more than %d entries", pando.ErrTooLarge, savedEntriesMax)
		case seen || path.Clean(h.Name) != path.Clean(name):
			continue
		case h.Typeflag != tar.TypeReg:
			return fmt.Errorf("%w: %q is no file", pando.ErrInvalid, name)
		case h.Size > smallMax:
			return fmt.Errorf("%w: %q has %d MiB: want at most %d", pando.ErrTooLarge, name, h.Size>>20,
				smallMax>>20)
		}
		seen = true
		if err := found(in); err != nil {
			return fmt.Errorf("%w: %q: %w", pando.ErrInvalid, name, err)
		}
	}
	return ctx.Err()
}
