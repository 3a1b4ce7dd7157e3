package requests

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// lists are hosts that list snapshots.
type lists struct {
	pando.Peers
	all map[pando.HostName][]pando.SealedSnapshot
}

func (l lists) Snapshots(
	_ context.Context, h pando.Host, _ pando.ServiceKey,
) ([]pando.SealedSnapshot, error) {
	return l.all[h.Name], nil
}

func (l lists) Snapshot(
	_ context.Context, h pando.Host, _ pando.SnapshotAsk,
) (pando.SealedSnapshot, error) {
	return l.all[h.Name][0], nil
}

// proved returns a description that the host of an instance of a service has written.
func proved(t *testing.T, c *Requests, s pando.ServiceKey, i pando.InstanceID,
	digest string,
) pando.SealedSnapshot {
	t.Helper()
	key, err := c.vault.SnapshotSealKey(s, i, 1)
	if err != nil {
		t.Fatal(err)
	}
	out, err := key.Prove(pando.SnapshotStatus{Digest: digest, Service: s, Instance: i, Revision: 1,
		Host: "h1", At: time.Unix(1e9, 0).UTC()})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A host lists what it likes. Control believes descriptions that a host of the instance has proved.
func TestControlBelievesProvenSnapshotsOnly(t *testing.T) {
	c := keeping(t)
	c.desk.mirror.World.Committed(pando.Txn{Put: []pando.Stored{pando.Host{Name: "h1", Freezes: true}}}, 3)
	vault := pando.ServiceKey{Tenant: "bank", Name: "vault"}
	own := proved(t, c, web, "web-9", "sha256:0123456789")
	forged := map[string]pando.SealedSnapshot{"no proof": own, "another service": own,
		"a later time": own, "a seed": own, "another instance": own, "another revision": own,
		"another digest": own, "not encrypted": own, "another size": own}
	for what, one := range forged {
		switch what {
		case "no proof":
			one.Seal = ""
		case "another service":
			one.Service = vault
		case "a later time":
			one.At = one.At.Add(time.Hour)
		case "a seed":
			one.Seed = true
		case "another instance":
			one.Instance = "web-8"
		case "another revision":
			one.Revision = 2
		case "another digest":
			one.Digest = "sha256:abcdef0123"
		case "not encrypted":
			one.Encrypted = !one.Encrypted
		case "another size":
			one.Bytes = 7
		}
		c.desk.peers = lists{all: map[pando.HostName][]pando.SealedSnapshot{"h1": {one, own}}}
		all, err := c.Snapshots(t.Context(), pando.ServiceKey{})
		if err != nil || len(all) != 1 || all[0].Digest != own.Digest || all[0].Service != web {
			t.Errorf("%s: %+v, %v", what, all, err)
		}
		if what == "another digest" {
			if _, err := c.RestoreSnapshot(t.Context(), web, one.Digest,
				pando.Asker{}); !errors.Is(err, pando.ErrNotFound) {
				t.Errorf("restored %s: %v", what, err)
			}
		}
		if _, err := c.Snapshot(t.Context(), web, pando.SnapshotAsk{}, pando.Asker{}); !errors.Is(err,
			pando.ErrForbidden) {
			t.Errorf("taken, %s: %v", what, err)
		}
	}
	// On another host it is a copy, with the same proof.
	copied := own
	copied.Copy = true
	c.desk.peers = lists{all: map[pando.HostName][]pando.SealedSnapshot{"h1": {copied}}}
	if all, err := c.Snapshots(t.Context(), web); err != nil || len(all) != 1 {
		t.Errorf("a copy: %+v, %v", all, err)
	}
}

// A host gets the images of the instances that control has placed on it, and the memory of services
// that it continues.
func TestAHostMayHaveTheImagesOfItsInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := keeping(t)
		const image, memory = "sha256:1111111111", "sha256:2222222222"
		c.desk.mirror.World.Committed(pando.Txn{Put: []pando.Stored{
			pando.Revision{Service: web, Number: 7, Spec: pando.Spec{Name: "web",
				Image: pando.Image{Reference: "shop/web", Digest: image}}},
			pando.Instance{ID: "web-7", Service: web, Host: "h1", Revision: 7},
			pando.Instance{ID: "web-8", Service: web, Host: "h2", Revision: 1, From: memory},
			// A host writes this of its own instance.
			pando.Instance{ID: "web-6", Service: pando.DefaultService("other"), Host: "h3", From: memory},
		}}, 4)
		seal := proved(t, c, web, "web-9", memory)
		forged := seal
		forged.Service = pando.DefaultService("other")
		for _, q := range []struct {
			pando.ImageQuestion
			may bool
		}{
			{pando.ImageQuestion{Host: "h1", Digest: image}, true},
			{pando.ImageQuestion{Host: "h2", Digest: image}, false},
			{pando.ImageQuestion{Host: "h9", Digest: image}, false},
			{pando.ImageQuestion{Host: "h2", Digest: memory, Snapshot: &seal}, true},
			{pando.ImageQuestion{Host: "h1", Digest: memory, Snapshot: &seal}, false},
			{pando.ImageQuestion{Host: "h3", Digest: memory, Snapshot: &seal}, false},
			{pando.ImageQuestion{Host: "h3", Digest: memory, Snapshot: &forged}, false},
			{pando.ImageQuestion{Host: "h2", Digest: image, Snapshot: &seal}, false},
			{pando.ImageQuestion{Host: "h2", Digest: memory}, false},
		} {
			err := c.MayHaveImage(t.Context(), q.ImageQuestion)
			if (err == nil) != q.may || err != nil && !errors.Is(err, pando.ErrForbidden) {
				t.Errorf("%s has %s: %v, want %v", q.Host, q.Digest, err, q.may)
			}
		}
	})
}
