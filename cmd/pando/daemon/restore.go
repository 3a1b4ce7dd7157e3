package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/store/backup"
	"pando.run/pando/driver/store/etcd"
)

// Restore returns `pando restore`.
func Restore(out *cli.Output) *cobra.Command {
	m := machine{out}
	var p place
	var s secret
	var replace, states, volumes bool
	c := &cobra.Command{
		Use: "restore FILE", Short: "bring the cluster back from a backup",
		Long: "Make this host's store anew from a backup, at the cluster's next generation, and start\n" +
			"the server. Instances and connections continue: hosts bring what runs on them, and their\n" +
			"newest states, into the restored store. `pando hosts` names what the backup lacks. The\n" +
			"store and the authority before the restore stay in the data folder, renamed.\n\n" +
			"A store with services is replaced only with --replace. With --states only the states of\n" +
			"this host come back, for a host whose disk is lost; stop its agent first. With --volumes\n" +
			"only the volumes of this host come back that it lacks.",
		Example: "  pando restore /backup/pando\n  pando restore /backup/pando --replace",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			words, err := s.passphrase(out.Env)
			if err != nil {
				return err
			}
			live, err := running(place{folders: folders{Run: p.Run}})
			if err == nil {
				p = live
				err = p.complete()
			} else if errors.Is(err, pando.ErrUnavailable) {
				_, err = p.completeAgain(c.Flags())
			}
			if err != nil {
				return err
			}
			r := restoration{machine: m, place: p, replace: replace, volumes: volumes}
			return r.run(c.Context(), args[0], words, states)
		},
	}
	p.flags(c)
	s.flag(c)
	c.Flags().BoolVar(&replace, "replace", false, "also replace a store that has services")
	c.Flags().BoolVar(&states, "states", false, "only the states of this host, if it has none")
	c.Flags().BoolVar(&volumes, "volumes", false, "only the volumes of this host that it lacks")
	return out.Flag(c)
}

// restoration is one run of `pando restore`.
type restoration struct {
	machine machine
	place   place
	replace bool
	volumes bool   // only those
	dir     string // of the unpacked backup
	is      backup.Manifest
	own     pando.Cluster // the restored store's record of itself
	open    *os.File      // the states of a living agent whose file is deleted, or nil
	guarded bool          // a warden ran
}

// waits of a restore
const (
	restoreMax = 5 * time.Minute
	adoptMax   = time.Minute // for this host's agent
)

func (r *restoration) run(ctx context.Context, file, passphrase string, states bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, restoreMax)
	defer cancel()
	if err := os.MkdirAll(r.place.Data, 0o750); err != nil {
		return fmt.Errorf("make the data folder: %w", err)
	}
	if r.dir, err = os.MkdirTemp(r.place.Data, "restore-"); err != nil {
		return fmt.Errorf("unpack the backup: %w", err)
	}
	defer os.RemoveAll(r.dir)
	if r.is, err = backup.Extract(file, passphrase, r.dir); err != nil {
		return cli.OfFile("open the backup", file, "name a file that `pando backup FILE` wrote", err)
	}
	switch {
	case states && r.volumes:
		return cli.Usagef("restore: want --states or --volumes, one after the other")
	case states:
		return r.statesOnly()
	case r.volumes:
		return r.volumesOnly()
	}
	if err := r.permitted(ctx); err != nil {
		return err
	}
	if err := r.place.writeFlags(r.place.keep); err != nil {
		return err
	}
	if err := r.store(ctx); err != nil {
		return err
	}
	if _, err := r.bringVolumes(); err != nil {
		return err
	}
	if err := r.agent(ctx); err != nil {
		return err
	}
	return r.report(ctx)
}

// permitted returns an error if the restore would replace a healthy cluster by mistake.
func (r *restoration) permitted(ctx context.Context) error {
	if r.is.Host != pando.HostName(r.place.Host) {
		return fmt.Errorf("%w: the backup is of the server on host %s, and this is host %s; "+
			"restore it with --host %[2]s, at the address of that host", pando.ErrInvalid,
			r.is.Host, r.place.Host)
	}
	if r.place.Store.there() {
		return fmt.Errorf("%w: the store is %s: `etcdctl snapshot restore` brings it back, by its owner",
			pando.ErrUnsupported, r.place.Store.text())
	}
	if s, err := r.place.readSeveral(); err != nil || s != nil {
		return errors.Join(err, fmt.Errorf("%w: this host has one of several servers, and the others "+
			"would serve beside the restored one; end all of them, then restore on a host without "+
			"servers.json", pando.ErrRefused))
	}
	if _, serves := daemon(r.place, "server"); !serves || r.replace {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	all, err := ownAPI(r.place, cli.Told(r.machine.Stderr)).Services(ctx)
	if err == nil && len(all) > 0 {
		return fmt.Errorf("%w: the store has %d services, and the backup is of %s; --replace replaces it",
			pando.ErrRefused, len(all), r.is.Made.Format(time.RFC3339))
	}
	return nil
}

// store ends the server, puts its store and its authority aside and makes the store anew.
func (r *restoration) store(ctx context.Context) error {
	r.open = r.deletedStates()
	_, r.guarded = daemon(r.place, wardenRole)
	if err := r.machine.endWarden(ctx, r.place); err != nil {
		return err
	}
	if err := r.machine.stopDaemon(ctx, r.place, "server", asking, false); err != nil {
		return err
	}
	aside := ".before-" + time.Now().UTC().Format("20060102T150405")
	for _, dir := range []string{filepath.Join(r.place.Data, "store"), r.place.trust()} {
		if err := os.Rename(dir, dir+aside); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("put %s aside: %w", dir, err)
		}
	}
	if err := r.restoreTrust(); err != nil {
		return err
	}
	own := pando.Cluster{
		Generation: r.is.Generation + 1, Backup: r.is.Made, Restored: time.Now().UTC(),
	}
	var err error
	r.own, err = etcd.Restore(ctx, filepath.Join(r.dir, backup.StoreFile),
		filepath.Join(r.place.Data, "store"), own, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return r.place.begin(ctx, "server")
}

// restoreTrust writes the files of the authority.
func (r *restoration) restoreTrust() error {
	if err := os.MkdirAll(r.place.trust(), 0o700); err != nil {
		return fmt.Errorf("restore the authority: %w", err)
	}
	from := filepath.Join(r.dir, "trust")
	entries, err := os.ReadDir(from)
	if err != nil {
		return fmt.Errorf("restore the authority: %w", err)
	}
	for _, e := range entries {
		err := copyFile(filepath.Join(r.place.trust(), e.Name()), filepath.Join(from, e.Name()))
		if err != nil {
			return fmt.Errorf("restore the authority: %w", err)
		}
	}
	return nil
}

// agent waits until this host's agent has brought what runs here into the store. An agent whose
// files are deleted starts anew on copies of them. Without an agent, the states of the backup come
// back.
func (r *restoration) agent(ctx context.Context) error {
	if _, tends := daemon(r.place, "agent"); tends {
		if err := r.awaitAdoption(ctx); err != nil {
			return err
		}
		if r.open != nil {
			if err := r.machine.stopDaemon(ctx, r.place, "agent", asking, false); err != nil {
				return err
			}
			defer r.open.Close()
			if _, err := r.open.Seek(0, io.SeekStart); err != nil {
				return fmt.Errorf("bring back the states: %w", err)
			}
			if err := writeDurably(r.place.states(), r.open); err != nil {
				return fmt.Errorf("bring back the states: %w", err)
			}
		}
	} else if err := r.restoreStates(); err != nil {
		return err
	}
	quiet := machine{&cli.Output{Env: r.machine.Env}}
	quiet.Stdout = io.Discard
	return quiet.up(ctx, r.place, r.guarded)
}

// awaitAdoption waits until the agent of this host shows the store's generation.
func (r *restoration) awaitAdoption(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, adoptMax)
	defer cancel()
	client := ownAPI(r.place, cli.Told(r.machine.Stderr))
	for {
		all, err := client.Hosts(ctx)
		if slices.ContainsFunc(all, func(h pando.HostStatus) bool {
			return string(h.Name) == r.place.Host && h.State == pando.HostHere &&
				h.Adopted >= r.own.Generation
		}) {
			return nil
		}
		if pando.Sleep(ctx, clock.Clock{}, 20*time.Millisecond) != nil {
			return fmt.Errorf("%w: the store is restored, and the agent has not followed it within %v "+
				"(%v); its log is %s", pando.ErrNotReady, adoptMax, err, daemonLog(r.place, "agent"))
		}
	}
}

// deletedStates opens the states of a living agent whose file is not in the data folder any more.
func (r *restoration) deletedStates() *os.File {
	pid, tends := daemon(r.place, "agent")
	if !tends {
		return nil
	}
	now, _ := os.Stat(r.place.states())
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, l := range links {
		if to, err := os.Readlink(l); err != nil ||
			strings.TrimSuffix(to, " (deleted)") != r.place.states() {
			continue
		}
		f, err := os.Open(l)
		if err != nil {
			continue
		}
		if is, err := f.Stat(); err == nil && (now == nil || !os.SameFile(now, is)) {
			return f
		}
		f.Close()
	}
	return nil
}

// restoreStates writes the states of this host from the backup, unless it has states.
func (r *restoration) restoreStates() error {
	from := filepath.Join(r.dir, filepath.FromSlash(backup.StatesFile(pando.HostName(r.place.Host))))
	_, err := os.Stat(r.place.states())
	_, lacks := os.Stat(from)
	if err == nil || errors.Is(lacks, os.ErrNotExist) {
		return nil
	}
	if err := copyFile(r.place.states(), from); err != nil {
		return fmt.Errorf("restore the states: %w", err)
	}
	return nil
}

func (r *restoration) statesOnly() error {
	if _, tends := daemon(r.place, "agent"); tends {
		return fmt.Errorf("%w: the agent runs and has states open; `pando down` stops it",
			pando.ErrRefused)
	}
	if _, err := os.Stat(r.place.states()); err == nil {
		return fmt.Errorf("%w: this host has states in %s", pando.ErrExists, r.place.states())
	}
	if r.is.Parts[backup.StatesFile(pando.HostName(r.place.Host))] == "" {
		return fmt.Errorf("the states of host %s in the backup: %w", r.place.Host, pando.ErrNotFound)
	}
	if err := r.restoreStates(); err != nil {
		return err
	}
	return r.machine.Show(r.is, func(w io.Writer) {
		fmt.Fprintf(w, "the states of host %s of %s are back. Next: pando up\n", r.place.Host,
			r.is.Made.Format(time.RFC3339))
	})
}

// report prints the instances and services that are back, and the missing ones.
func (r *restoration) report(ctx context.Context) error {
	all, err := ownAPI(r.place, cli.Told(r.machine.Stderr)).Hosts(ctx)
	if err != nil {
		return err
	}
	is := struct {
		Cluster pando.Cluster      `json:"cluster"`
		Hosts   []pando.HostStatus `json:"hosts"`
	}{r.own, all}
	return r.machine.Show(is, func(w io.Writer) {
		fmt.Fprintf(w, "cluster %s is back as of %s, generation %d\n", r.own.ID,
			r.is.Made.Format(time.RFC3339), r.own.Generation)
		for _, h := range all {
			switch {
			case h.Adrift != "":
				fmt.Fprintf(w, "%s runs %s without a record: %s\n", h.Name, h.Adrift, cli.AdriftHelp)
			case h.State != pando.HostHere:
				fmt.Fprintf(w, "%s is %s: `pando hosts` shows when it follows\n", h.Name, h.State)
			}
		}
	})
}

func copyFile(to, from string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	return writeDurably(to, f)
}

// writeDurably writes a file for root alone, and puts it in its place once it is on the disk.
func writeDurably(to string, from io.Reader) error {
	f, err := os.OpenFile(to+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(to+".new"))
	}
	return os.Rename(to+".new", to)
}
