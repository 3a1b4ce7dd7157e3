package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/client/pkg/v3/transport"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/trust"
	"pando.run/pando/driver/store/etcd"
	"pando.run/pando/world"
)

// foreignStore is an etcd that runs without Pando, as the flags of --store name it. The zero value
// is the embedded store.
type foreignStore struct {
	Endpoints []string `json:"endpoints"`
	CA        string   `json:"ca,omitempty"`
	Cert      string   `json:"cert,omitempty"`
	Key       string   `json:"key,omitempty"`
}

func (f *foreignStore) flags(c *cobra.Command) {
	s := c.Flags()
	s.StringSliceVar(&f.Endpoints, "store", nil,
		"use the etcd at these endpoints, https://HOST:PORT")
	s.StringVar(&f.CA, "store-ca", "", "with --store: file with the etcd's authority")
	s.StringVar(&f.Cert, "store-cert", "", "with --store: file with the client's certificate")
	s.StringVar(&f.Key, "store-key", "", "with --store: file with the client's key")
}

// there reports whether the store is an etcd of others.
func (f foreignStore) there() bool { return len(f.Endpoints) > 0 }

// text names the etcd for people.
func (f foreignStore) text() string { return "the etcd at " + strings.Join(f.Endpoints, ", ") }

// args returns the flags that pass the store to another role.
func (f foreignStore) args() (out []string) {
	for _, e := range f.Endpoints {
		out = append(out, "--store", e)
	}
	if f.there() {
		out = append(out, "--store-ca", f.CA, "--store-cert", f.Cert, "--store-key", f.Key)
	}
	return out
}

// settings returns the flags by name.
func (f foreignStore) settings() map[string]string {
	return map[string]string{"store": strings.Join(f.Endpoints, ","), "store-ca": f.CA,
		"store-cert": f.Cert, "store-key": f.Key}
}

// storeNote is the file by which a later start without --store finds the etcd.
func (f folders) storeNote() string { return filepath.Join(f.Data, "store.json") }

// completeStore makes the paths of the flags absolute. It reads the note if --store is missing.
func completeStore(p *place) error {
	s := &p.Store
	if !s.there() {
		if s.CA != "" || s.Cert != "" || s.Key != "" {
			return cli.Usagef("--store-ca, --store-cert and --store-key belong to --store " +
				"https://HOST:PORT")
		}
		text, err := os.ReadFile(p.storeNote())
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = json.Unmarshal(text, s)
		}
		if err != nil {
			return fmt.Errorf("read the endpoints of the store in %s: %w", p.storeNote(), err)
		}
		return nil
	}
	if (s.Cert == "") != (s.Key == "") {
		return cli.Usagef("--store-cert and --store-key belong together")
	}
	for _, path := range []*string{&s.CA, &s.Cert, &s.Key} {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("find %s: %w", *path, err)
		}
		*path = abs
	}
	return nil
}

// noteStore stores the endpoints for later starts.
func noteStore(p place) error {
	text, err := json.Marshal(p.Store)
	if err == nil {
		err = writeDurably(p.storeNote(), strings.NewReader(string(text)))
	}
	if err != nil {
		return fmt.Errorf("note the endpoints of the store: %w", err)
	}
	return nil
}

// config returns the etcd for the driver. Each new connection reads the files of the client again.
func (f foreignStore) config() (etcd.Foreign, error) {
	for _, file := range []string{f.CA, f.Cert, f.Key} {
		if st, err := os.Stat(file); err == nil && st.Size() == 0 {
			return etcd.Foreign{}, fmt.Errorf("%w: the file %s is empty; --store-ca, --store-cert and "+
				"--store-key name files in PEM", pando.ErrInvalid, file)
		}
	}
	files := transport.TLSInfo{TrustedCAFile: f.CA, CertFile: f.Cert, KeyFile: f.Key}
	c, err := files.ClientConfig()
	if err != nil {
		return etcd.Foreign{}, fmt.Errorf("%w: read the files of --store-ca, --store-cert and "+
			"--store-key: %w; each names a file in PEM on this host", pando.ErrInvalid, err)
	}
	return etcd.Foreign{Endpoints: f.Endpoints, TLS: c, Clock: clock.Clock{}}, nil
}

// mayUseStore returns why this host cannot use the etcd of --store, or nil. The server itself would
// wait for an etcd that does not answer.
func mayUseStore(ctx context.Context, p place) error {
	if !p.Store.there() {
		return nil
	}
	if own, err := p.hasEmbedded(); err != nil || own {
		return errors.Join(err, fmt.Errorf("%w: this host has a store of its own in %s, and --store "+
			"would begin another cluster; `pando down --purge` deletes it", pando.ErrExists, p.Data))
	}
	m, err := trust.LoadMembership(p.trust())
	if err != nil {
		return err
	}
	is, err := p.isServer()
	if err != nil || !p.Serves && (p.Join != "" || !is && m != nil) {
		return errors.Join(err, cli.Usagef("--store is for servers: add --server, with a token of "+
			"`pando servers add`; other hosts reach the store by the servers"))
	}
	f, err := p.Store.config()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, storeCheckMax)
	defer cancel()
	if err := f.Check(ctx); err != nil {
		return fmt.Errorf("use %s: %w", p.Store.text(), err)
	}
	return nil
}

// storeCheckMax bounds the check of all endpoints.
const storeCheckMax = 15 * time.Second

// ownStore returns a check that a foreign etcd has this cluster's records, or none at all. It
// returns etcd.ErrRemoved if this host's server was taken out.
func ownStore(p place, a *trust.Authority) func(context.Context, pando.Registry) error {
	return func(ctx context.Context, r pando.Registry) error {
		now, err := r.Snapshot(ctx, pando.ClusterKey)
		if err != nil {
			return err
		}
		for _, rec := range now.Records {
			var c pando.Cluster
			if err := world.Decode(rec, &c); err != nil {
				return err
			}
			if c.Authority != fingerprint(a) {
				return fmt.Errorf("%w: %s has the records of another cluster, %s; join it with `pando up "+
					"--join ADDRESS --token TOKEN`, or delete its records: `etcdctl del --prefix %s`",
					pando.ErrExists, p.Store.text(), c.ID, pando.Root)
			}
		}
		m, err := readMember(ctx, r, pando.HostName(p.Host))
		if err == nil && !m.Server {
			return etcd.ErrRemoved
		}
		return noteStore(p)
	}
}

// fingerprint identifies the authority of a cluster.
func fingerprint(a *trust.Authority) string {
	return pando.PublicKeyHash(a.Certificate().RawSubjectPublicKeyInfo)
}

// dismissal returns a job that ends the server of this host once `pando servers rm` took it out. An
// embedded etcd ends by itself; for a foreign one, the job follows the record of the member.
func dismissal(p place, r *etcd.Registry) job {
	return func(ctx context.Context) error {
		if !p.Store.there() {
			<-ctx.Done()
			return ctx.Err()
		}
		key := pando.MemberKey(pando.HostName(p.Host))
		for {
			now, err := r.Snapshot(ctx, key)
			if err == nil {
				for b := range r.Watch(ctx, key, now.Revision) {
					if gone := dismissed(b, key); gone {
						return errors.Join(etcd.ErrRemoved, leaveServers(p))
					}
				}
			}
			if pando.Sleep(ctx, clock.Clock{}, time.Second) != nil {
				return ctx.Err()
			}
			m, err := readMember(ctx, r, pando.HostName(p.Host))
			if err == nil && !m.Server { // while the watch was away
				return errors.Join(etcd.ErrRemoved, leaveServers(p))
			}
		}
	}
}

// dismissed reports whether a batch has the record of a member without a server.
func dismissed(b pando.Batch, key pando.Key) bool {
	for _, rec := range b.Changes {
		var m pando.Member
		if rec.Key == key && rec.Value != nil && world.Decode(rec, &m) == nil && !m.Server {
			return true
		}
	}
	return false
}
