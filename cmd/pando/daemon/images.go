package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/access/turns"
	"pando.run/pando/agent"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/control"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/peer"
	"pando.run/pando/driver/cluster/trust"
	"pando.run/pando/driver/sandbox/image"
	"pando.run/pando/driver/sandbox/process"
	"pando.run/pando/driver/sandbox/process/volume"
	"pando.run/pando/spec"
)

// certificateFolders are where docker and podman keep the authorities of registries.
var certificateFolders = []string{"/etc/docker/certs.d", "/etc/containers/certs.d"}

// registriesFile is the list of registries of a host's owner.
const registriesFile = "/etc/pando/registries"

// imageFreeMin is the space that images leave free: the store of the cluster ends on a full disk.
func imageFreeMin(p place) int64 {
	room, err := volume.RoomOf(p.Data)
	if err != nil {
		return pando.DiskReserve / 2
	}
	return room.Floor()
}

// tenantImageBytes is what the images of one tenant may take on this host: a quarter of the disk. A
// disk whose size cannot be read gives little, because 0 would bound nothing.
func tenantImageBytes(p place) int64 {
	room, err := volume.RoomOf(p.Data)
	if err != nil {
		return pando.DiskReserve / 2
	}
	return room.Bytes / 4
}

// openImages opens this host's store of images. The server and the agent of a host share it. Only
// the agent, which runs as root, unpacks layers.
func openImages(p place, peers *peer.Client, log *slog.Logger) (*image.Store, error) {
	return image.Open(image.Config{
		Dir: p.images(), Host: pando.HostName(p.Host), Peer: peers.Blob, Clock: clock.Clock{}, Log: log,
		PeerSnapshot: peers.Described,
		Certificates: certificateFolders, Registries: registriesFile, FreeMin: imageFreeMin(p), TenantBytes: tenantImageBytes(p),
		Packed: os.Geteuid() == serverUser,
		Unpack: []string{"/proc/self/exe", image.UnpackRole}, // the same build, also during an upgrade
	})
}

// Unpack returns the hidden command that unpacks one layer.
func Unpack() *cobra.Command {
	return &cobra.Command{
		Use: image.UnpackRole, Short: "unpack one layer of an image (started by a daemon)",
		Hidden: true, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error { return cli.Exit(image.UnpackMain(args)) },
	}
}

// imageOperators resolves the image of a spec before control decides about it.
type imageOperators struct {
	*control.Control
	images    *image.Store
	sandboxes string // the folder of this host's sandboxes
	resolving *turns.Queue[pando.Tenant]
	inviter
}

// resolveTurns is how many references this server resolves at once. A registry of a tenant may answer
// as slowly as it likes.
var resolveTurns = turns.Bound{Total: 32, Each: 4, Reserve: 8, Waiting: 16}

var (
	_ pando.ImageOperators = imageOperators{}
	_ pando.Inviter        = imageOperators{}
)

func withImages(
	ctl *control.Control, p place, a *trust.Authority, peers *peer.Client, log *slog.Logger,
) (imageOperators, error) {
	images, err := openImages(p, peers, log)
	if err == nil {
		images.Member = ctl.HasHostAt
	}
	return imageOperators{ctl, images, p.sandboxes(), turns.New[pando.Tenant](resolveTurns),
		inviter{p, a, log}}, err
}

// travelled brings the files that another host has read to this one.
func (o imageOperators) travelled(ctx context.Context, i pando.Image) error {
	if !i.OfFiles() || i.Digest == "" || i.Host == "" {
		return nil
	}
	h, err := o.Present(i.Host)
	if err != nil {
		return err
	}
	return o.images.Pull(ctx, i, []pando.Host{h})
}

// users returns the services by the digest of the image or the bundle in their newest spec.
func (o imageOperators) users(ctx context.Context) (map[string][]pando.ServiceKey, error) {
	services, err := o.Services(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string][]pando.ServiceKey{}
	for _, s := range services {
		st, err := o.Service(ctx, s.ServiceKey)
		if errors.Is(err, pando.ErrNotFound) {
			continue // it was removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		if st.Spec == nil {
			continue
		}
		if d := st.Spec.Files().Digest; d != "" {
			out[d] = append(out[d], s.ServiceKey)
		}
	}
	return out, nil
}

// Images implements pando.ImageOperators.
func (o imageOperators) Images(ctx context.Context) ([]pando.ImageStatus, error) {
	all, err := o.images.List()
	if err != nil {
		return nil, err
	}
	users, err := o.users(ctx)
	for n := range all {
		all[n].Services = append([]pando.ServiceKey{}, users[all[n].Digest]...)
	}
	return all, err
}

// PullImage implements pando.ImageOperators.
func (o imageOperators) PullImage(
	ctx context.Context, want pando.Image,
) (pando.ImageStatus, error) {
	if err := spec.CheckImage(want.Reference); err != nil {
		return pando.ImageStatus{}, err
	}
	if err := o.travelled(ctx, want); err != nil {
		return pando.ImageStatus{}, err
	}
	want.Inside = !want.OfFiles() // no token pulls
	i, _, err := o.images.Resolve(ctx, "", want)
	if err == nil {
		err = o.images.Pull(ctx, i, nil)
	}
	if err != nil {
		return pando.ImageStatus{}, err
	}
	return o.image(ctx, i.Digest)
}

func (o imageOperators) image(ctx context.Context, digest string) (pando.ImageStatus, error) {
	all, err := o.Images(ctx)
	if err != nil {
		return pando.ImageStatus{}, err
	}
	for _, i := range all {
		if i.Digest == digest {
			return i, nil
		}
	}
	return pando.ImageStatus{}, fmt.Errorf("image %s: %w; `pando image ls` lists them", digest,
		pando.ErrNotFound)
}

// RemoveImage implements pando.ImageOperators.
func (o imageOperators) RemoveImage(ctx context.Context, digest string) error {
	i, err := o.image(ctx, digest)
	if err != nil {
		return err
	}
	if len(i.Services) > 0 {
		return fmt.Errorf("%w: service %s uses image %s; `pando rm %s` removes the service",
			pando.ErrRefused, i.Services[0], digest, i.Services[0].Name)
	}
	running, err := process.Images(o.sandboxes)
	if err != nil {
		return fmt.Errorf("remove image %s: %w; run the command again", digest, err)
	}
	if running[digest] {
		return fmt.Errorf("%w: an instance on this host runs image %s; `pando ps` lists them",
			pando.ErrRefused, digest)
	}
	return o.images.Remove(ctx, digest)
}

// Bounds of a host's store of images, and the interval of its sweep.
const (
	imageAgeMax     = 7 * 24 * time.Hour
	imageBytesMax   = 20 << 30
	imageSweepEvery = 10 * time.Minute
)

// sweepImages returns a job that removes images that no instance and no revision uses.
func sweepImages(p place, images *image.Store, a *agent.Agent, log *slog.Logger) job {
	return func(ctx context.Context) error {
		for pando.Sleep(ctx, clock.Clock{}, imageSweepEvery) == nil {
			keep := a.ImagesInUse()
			running, err := process.Images(p.sandboxes())
			if err != nil {
				log.Warn("images that nothing uses stay", "error", err)
				continue
			}
			maps.Copy(keep, running)
			gone, err := images.Sweep(ctx, keep, image.Bounds{Age: imageAgeMax, Bytes: imageBytesMax})
			if err != nil {
				log.Warn("images that nothing uses stay", "error", err)
			}
			for _, digest := range gone {
				log.Info("removed an image that nothing used", "image", digest)
			}
		}
		return ctx.Err()
	}
}

// keepImages returns a job that keeps the images of all services on the server's host. It may be
// the only host that has read one from a file.
func (o imageOperators) keepImages(log *slog.Logger) job {
	return func(ctx context.Context) error {
		for pando.Sleep(ctx, clock.Clock{}, imageSweepEvery) == nil {
			users, err := o.users(ctx)
			for digest := range users {
				err = errors.Join(err, o.images.Touch(digest))
			}
			if err != nil {
				log.Warn("the use of images is not noted", "error", err)
			}
		}
		return ctx.Err()
	}
}

// Deploy implements pando.Operators.
func (o imageOperators) Deploy(
	ctx context.Context, s pando.Spec, by pando.Asker,
) (pando.ServiceStatus, error) {
	if s.Image.Reference == "" {
		s.Image = pando.Image{}
		return o.deployBundle(ctx, s, by)
	}
	err := spec.CheckImage(s.Image.Reference)
	if err == nil { // no registry is asked for a spec that is refused in any case
		err = o.Control.Admits(ctx, s, by)
	}
	if err != nil {
		return pando.ServiceStatus{}, err
	}
	var i pando.Image
	var c pando.ImageConfig
	err = o.travelled(ctx, s.Image)
	if err == nil {
		i, c, err = o.resolve(ctx, s.Key().Tenant, s.Image)
	}
	if err != nil {
		return pando.ServiceStatus{}, fmt.Errorf("deploy %s: %w", s.Key(), err)
	}
	s = spec.FromImage(spec.Own(s), i, c)
	st, err := o.Control.Deploy(ctx, s, by)
	if lost := spec.LostVolumes(s, c); err == nil && lost != "" {
		st.Warnings = append(st.Warnings, lost)
	}
	if err == nil && len(s.Ports) == 0 && len(c.Exposed) > 0 {
		st.Warnings = append(st.Warnings, fmt.Sprintf("the image exposes %s, and the spec publishes no "+
			"port; `ports` in the spec does", c.Exposed[0]))
	}
	return st, err
}

// resolve finds the image of a spec, once the tenant of the token has a turn. Operators wait for no
// tenant.
func (o imageOperators) resolve(
	ctx context.Context, t pando.Tenant, i pando.Image,
) (pando.Image, pando.ImageConfig, error) {
	take := o.resolving.TakeAsOperator
	if token, ok := access.TokenOf(ctx); ok {
		take = func(ctx context.Context, waits func(string)) (func(), error) {
			return o.resolving.Take(ctx, token.Tenant, waits)
		}
	}
	done, err := take(ctx, nil)
	if err != nil {
		return i, pando.ImageConfig{}, fmt.Errorf("ask the registry of image %s: %w", i.Reference, err)
	}
	defer done()
	return o.images.Resolve(ctx, t, i)
}

// deployBundle packs the bundle of a spec. A spec without a bundle is deployed as it is.
func (o imageOperators) deployBundle(
	ctx context.Context, s pando.Spec, by pando.Asker,
) (pando.ServiceStatus, error) {
	if s.Bundle.Folder == "" {
		return o.Control.Deploy(ctx, s, by)
	}
	if err := spec.Check(s.WithDefaults()); err != nil {
		return pando.ServiceStatus{}, err
	}
	var left []string
	err := o.travelled(ctx, s.Bundle.Image())
	if err == nil && s.Bundle.Digest == "" {
		s.Bundle, left, err = o.images.Bundle(ctx, s.Bundle.Folder)
	}
	if err != nil {
		return pando.ServiceStatus{}, fmt.Errorf("deploy %s: %w", s.Key(), err)
	}
	s.Bundle.Host = pando.HostName(o.at.Host) // it has the files in any case
	st, err := o.Control.Deploy(ctx, s, by)
	if err == nil && len(left) > 0 {
		st.Warnings = append(st.Warnings, pando.LeftOut(left))
	}
	return st, err
}
