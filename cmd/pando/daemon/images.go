package daemon

import (
	"context"
	"fmt"
	"log/slog"

	"pando.run/pando"
	"pando.run/pando/control"
	"pando.run/pando/driver/image"
	"pando.run/pando/driver/peer"
	"pando.run/pando/driver/wall"
	"pando.run/pando/spec"
)

// certificateFolders are where docker and podman keep the authorities of registries.
var certificateFolders = []string{"/etc/docker/certs.d", "/etc/containers/certs.d"}

// imageFreeMin is the space that images leave free: the store of the cluster ends on a full disk.
const imageFreeMin = 256 << 20

// openImages opens this host's store of images. The server and the agent of a host share it.
func openImages(p place, peers *peer.Client, log *slog.Logger) (*image.Store, error) {
	return image.Open(image.Config{
		Dir: p.images(), Host: pando.HostName(p.Host), Peer: peers.Blob, Clock: wall.Clock{}, Log: log,
		Certificates: certificateFolders, FreeMin: imageFreeMin,
	})
}

// imageOperators resolves the image of a spec before control decides about it.
type imageOperators struct {
	*control.Control
	images *image.Store
}

// Deploy implements pando.Operators.
func (o imageOperators) Deploy(
	ctx context.Context, s pando.Spec, by pando.Asker,
) (pando.ServiceStatus, error) {
	if s.Image.Reference == "" {
		s.Image = pando.Image{}
		return o.Control.Deploy(ctx, s, by)
	}
	if err := spec.CheckImage(s.Image.Reference); err != nil {
		return pando.ServiceStatus{}, err
	}
	i, c, err := o.images.Resolve(ctx, s.Image)
	if err != nil {
		return pando.ServiceStatus{}, fmt.Errorf("deploy %s: %w", s.Key(), err)
	}
	s = spec.FromImage(spec.Own(s), i, c)
	st, err := o.Control.Deploy(ctx, s, by)
	if err == nil && len(s.Ports) == 0 && len(c.Exposed) > 0 {
		st.Warnings = append(st.Warnings, fmt.Sprintf("the image exposes %s, and the spec publishes no "+
			"port; `ports` in the spec does", c.Exposed[0]))
	}
	return st, err
}
