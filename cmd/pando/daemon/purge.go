package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/sandbox/process/volume"
	"pando.run/pando/driver/store/bolt"
)

// purgeWaitMax bounds the wait for the names of the cluster's services and secrets.
const purgeWaitMax = 5 * time.Second

// purge is what `pando down --purge` deletes on a host.
type purge struct {
	Services []string `json:"services,omitempty"` // of a cluster that ends with this host
	Secrets  []string `json:"secrets,omitempty"`  // of such a cluster
	States   []string `json:"states,omitempty"`   // services whose states this host stores
	Volumes  []string `json:"volumes,omitempty"`  // services whose volumes this host has
	// Unknown is why the services and secrets of a cluster that ends are not known, or "".
	Unknown string `json:"unknown,omitempty"`
	// Keeps is set while the volumes stay in the data folder.
	Keeps bool `json:"keeps_volumes,omitempty"`
}

// planPurge lists what a purge deletes. The server still runs. Only the last server has the
// services and the secrets of the cluster, and its names are unknown if it does not answer.
func planPurge(ctx context.Context, p place, volumes bool) (out purge, err error) {
	kept, err := volume.New(p.volumes(), pando.HostName(p.Host), nil).
		KeptVolumes(ctx, pando.VolumeQuery{})
	if err != nil {
		return out, fmt.Errorf("list the volumes in %s: %w", p.volumes(), err)
	}
	for _, v := range kept {
		if name := v.Service.String(); !slices.Contains(out.Volumes, name) {
			out.Volumes = append(out.Volumes, name)
		}
	}
	out.Keeps = len(out.Volumes) > 0 && !volumes
	several, err := p.readSeveral()
	own, hasErr := p.hasEmbedded()
	if err != nil || hasErr != nil || several != nil && !several.Left || !own {
		return out, errors.Join(err, hasErr)
	}
	ctx, cancel := context.WithTimeout(ctx, purgeWaitMax)
	defer cancel()
	client := api.NewClient(p.api(), clock.Clock{})
	services, err := client.Services(ctx)
	for _, s := range services {
		out.Services = append(out.Services, s.ServiceKey.String())
	}
	secrets, more := (api.SecretClient{Client: client}).Secrets(ctx)
	for _, s := range secrets {
		out.Secrets = append(out.Secrets, s.SecretKey.String())
	}
	if err = errors.Join(err, more); err != nil {
		out.Unknown = err.Error()
	}
	return out, nil
}

// addStates adds the services whose states are in the file of this host. Its agent has ended.
func (u *purge) addStates(path string) error {
	if there, err := exists(path); err != nil || !there {
		return err
	}
	s, err := bolt.Open(path)
	if err != nil {
		return err
	}
	refs, err := s.Refs("")
	names := map[string]bool{}
	for ref := range refs { // TENANT/SERVICE/…
		if words := strings.SplitN(ref, "/", 3); len(words) == 3 {
			names[pando.ServiceKey{Tenant: pando.Tenant(words[0]),
				Name: pando.ServiceName(words[1])}.String()] = true
		}
	}
	u.States = slices.Sorted(maps.Keys(names))
	return errors.Join(err, s.Close())
}

// print says what the purge deletes, one line for each kind.
func (u purge) print(w io.Writer, volumes string) {
	line := func(kind string, names []string) {
		if len(names) > 0 {
			fmt.Fprintf(w, "--purge deletes %s: %s\n", kind, pando.Few(names))
		}
	}
	if u.Unknown != "" {
		fmt.Fprintf(w, "--purge deletes the services and secrets of the cluster, and not all names are known: "+
			"%s\n", cli.Clean(u.Unknown))
	}
	line("the services of the cluster", u.Services)
	line("its secrets", u.Secrets)
	line("the states on this host of", u.States)
	if !u.Keeps {
		line("the volumes on this host of", u.Volumes)
		return
	}
	fmt.Fprintf(w, "the volumes of %s stay in %s: a service of the same name that starts on this host "+
		"has them again; `pando down --purge --volumes` deletes them\n", pando.Few(u.Volumes), volumes)
}

// empty removes everything in a folder, but neither the folder nor the named entries. Another mount
// namespace may have a mount on the folder, and the kernel would detach that mount if the folder
// were removed.
func empty(dir string, keep ...string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		if !slices.Contains(keep, e.Name()) {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// emptyData removes the files of this host, without the volumes that the purge keeps.
func (u purge) emptyData(p place) error {
	if u.Keeps {
		return empty(p.Data, filepath.Base(p.volumes()))
	}
	return empty(p.Data)
}
