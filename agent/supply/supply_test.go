package supply

import (
	"testing"

	"pando.run/pando"
)

// unproven are images whose registries have not sent all their blobs to this host.
type unproven struct{ pando.Images }

func (unproven) Root(string, string) (pando.ImageRoot, error) { return pando.ImageRoot{}, nil }
func (unproven) Proven(pando.Image) bool                      { return false }

// The image of a tenant is here only once its registry has proved that. That of operators is here
// with its layers.
func TestAnImageOfATenantIsHereOnceItsRegistryProvedIt(t *testing.T) {
	u := New(Supplier{Images: unproven{}})
	spec := pando.Spec{Image: pando.Image{Reference: "shop/web", Digest: "sha256:1"}}
	for tenant, lacks := range map[pando.Tenant]bool{"acme": true, pando.DefaultTenant: false} {
		i := pando.Instance{Service: pando.ServiceKey{Tenant: tenant, Name: "web"}}
		files, err := u.MissingFiles(Start{Instance: i, Spec: spec})
		if err != nil || (files.Digest != "") != lacks || files.Prove != lacks {
			t.Errorf("%s: it lacks %+v, %v", tenant, files, err)
		}
	}
}
