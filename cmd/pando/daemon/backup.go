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

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/peer"
	"pando.run/pando/driver/store/backup"
	"pando.run/pando/driver/store/etcd"
	"pando.run/pando/world"
)

// secret is the passphrase of a backup.
type secret struct{ file string }

func (s *secret) flag(c *cobra.Command) {
	c.Flags().StringVar(&s.file, "passphrase-file", "",
		"file with the passphrase (default: PANDO_PASSPHRASE)")
}

// passphrase returns the passphrase, or "" if none is given.
func (s secret) passphrase(env cli.Env) (string, error) {
	if s.file == "" {
		return env.Getenv("PANDO_PASSPHRASE"), nil
	}
	text, err := cli.ReadFile("read the passphrase", s.file,
		"write it there, or give it in PANDO_PASSPHRASE")
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(text), "\r\n"), nil
}

// Backup returns `pando backup`.
func Backup(out *cli.Output) *cobra.Command {
	m := machine{out}
	var p place
	var s secret
	var encrypt, volumes, force bool
	c := &cobra.Command{
		Use: "backup FILE", Short: "write the cluster to a file",
		Long: "Write the store, the states of all hosts and the cluster's authority to a file. The\n" +
			"cluster runs on meanwhile. Run it on the server's host. The file has the key of the\n" +
			"authority: keep it as safe as the server, or encrypt it with a passphrase. A host that\n" +
			"does not answer is named, its states are missing, and the exit code is 13. --volumes adds\n" +
			"the files of all volumes as they are: stop a service that writes, or use its own backup.\n" +
			"An older backup of that name is replaced, and no other file.",
		Example: "  pando backup /backup/pando\n" +
			"  PANDO_PASSPHRASE=… pando backup --encrypt /backup/pando",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			words, err := s.passphrase(out.Env)
			switch {
			case err != nil:
				return err
			case encrypt && words == "":
				return cli.Usagef("--encrypt needs a passphrase: --passphrase-file FILE or PANDO_PASSPHRASE")
			}
			err = cli.MayReplace(args[0], force, func(file string) bool { return backup.Wrote(file, words) })
			if err != nil {
				return fmt.Errorf("write the backup: %w", err)
			}
			if p, err = running(p); err != nil {
				return err
			}
			if !encrypt {
				words = ""
			}
			return m.backup(c.Context(), p, args[0], words, volumes)
		},
	}
	p.runFlag(c)
	s.flag(c)
	c.Flags().BoolVar(&encrypt, "encrypt", false, "encrypt the file with a passphrase (age)")
	c.Flags().BoolVar(&force, "force", false, "write over a file that is no backup")
	c.Flags().BoolVar(&volumes, "volumes", false, "also the files of all volumes")
	return out.Flag(c)
}

func (m machine) backup(
	ctx context.Context, p place, path, passphrase string, volumes bool,
) (err error) {
	if _, serves := daemon(p, "server"); !serves {
		return fmt.Errorf("%w: no server runs here; run `pando backup` on the server's host",
			pando.ErrUnavailable)
	}
	if p.Store.there() {
		return fmt.Errorf("%w: the store is %s: `etcdctl snapshot save FILE` there copies it",
			pando.ErrUnsupported, p.Store.text())
	}
	w, err := backup.Create(path, passphrase)
	if err != nil {
		return err
	}
	is, err := p.writeBackup(cli.Telling(ctx, m.Stderr), w, volumes)
	if err != nil {
		w.Abort()
		return err
	}
	if err := w.Close(is); err != nil {
		return err
	}
	for _, h := range is.Missing {
		fmt.Fprintf(m.Stderr, "host %s did not answer: it is not in the backup\n", h)
	}
	err = m.Show(is, func(w io.Writer) {
		fmt.Fprintf(w, "backed up cluster %s, generation %d, at revision %d to %s\n",
			is.Cluster, is.Generation, is.Revision, path)
	})
	if err == nil && len(is.Missing) > 0 {
		return cli.Code(cli.CodeOf(pando.ErrUnreachable))
	}
	return err
}

// writeBackup writes the parts. The store comes first: states are durable before the store names
// them, so later copies of the states have all that the store names.
func (p place) writeBackup(
	ctx context.Context, w *backup.Writer, volumes bool,
) (is backup.Manifest, err error) {
	store, err := etcd.Dial(ctx, "unix://"+p.store(), nil)
	if err != nil {
		return is, err
	}
	defer store.Close()
	done := pando.Waiting(ctx, clock.Clock{}, "the store of the server on this host")
	now, err := store.Snapshot(ctx, pando.Root)
	done()
	if err != nil {
		return is, err
	}
	all := world.New()
	_ = all.Apply(now.Records, now.Revision) // unreadable records are copied as they are
	own := all.Cluster.V
	is = backup.Manifest{
		Cluster: own.ID, Generation: own.Generation, Revision: now.Revision, Made: time.Now().UTC(),
		Host: pando.HostName(p.Host), Version: cli.Version, Layout: max(own.Layout, pando.Layout),
	}
	err = w.Add(backup.StoreFile, func(to io.Writer) error { return store.Backup(ctx, to) })
	if err != nil {
		return is, err
	}
	if err := p.addTrust(w); err != nil {
		return is, err
	}
	is.Missing, err = p.addStates(ctx, w, all, volumes)
	return is, err
}

// addTrust adds the files of the authority.
func (p place) addTrust(w *backup.Writer) error {
	entries, err := os.ReadDir(p.trust())
	if err != nil {
		return fmt.Errorf("back up the authority: %w", err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || e.Name() == "lock" {
			continue
		}
		err := w.Add(backup.TrustFile(e.Name()), func(to io.Writer) error {
			text, err := os.ReadFile(filepath.Join(p.trust(), e.Name()))
			if err == nil {
				_, err = to.Write(text)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// addStates adds the states of every host, and its volumes if asked. It returns the members that
// did not answer.
func (p place) addStates(
	ctx context.Context, w *backup.Writer, all *world.World, volumes bool,
) (missing []pando.HostName, err error) {
	_, identity, err := serverTrust(p)
	if err != nil {
		return nil, err
	}
	peers := peer.New(peer.Reach{
		Own: pando.HostName(p.Host), Socket: p.agent(), TLS: identity.ToHost, Clock: clock.Clock{},
	})
	defer peers.Close()
	for _, name := range slices.Sorted(maps.Keys(all.Members)) {
		h, here := all.Hosts[name]
		if here {
			err = w.Add(backup.StatesFile(name), func(to io.Writer) error {
				return peers.Objects(ctx, h.V, to)
			})
		}
		if here && err == nil && volumes {
			err = w.Add(backup.VolumesFile(name), func(to io.Writer) error {
				return peers.VolumeFiles(ctx, h.V, to)
			})
		}
		switch {
		case !here, errors.Is(err, pando.ErrUnavailable):
			missing = append(missing, name)
		case err != nil:
			return missing, err
		}
	}
	return missing, nil
}
