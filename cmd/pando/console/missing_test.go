package console

import (
	"errors"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console/consoletest"
)

// A name without a service leads to the likely one: of the same tenant with a slip, or of another
// tenant with the same name.
func TestAMissingServiceHasASuggestion(t *testing.T) {
	status := func(tenant pando.Tenant, name pando.ServiceName) (st pando.ServiceStatus) {
		st.ServiceKey = pando.ServiceKey{Tenant: tenant, Name: name}
		return st
	}
	env, _ := consoletest.Answering(t, map[string]any{"GET /v1/services": []pando.ServiceStatus{
		status(pando.DefaultTenant, "website"), status("shop", "cart"),
	}})
	o := Open(&cli.Output{Env: env})
	for name, want := range map[string]string{
		"webiste":   "service webiste: not found; did you mean website?",
		"cart":      "a service of another tenant has that name: shop/cart",
		"zebra":     "`pando status` lists the services",
		"shop/cat":  "did you mean shop/cart?",
		"shop/cart": "not found", // the error was about a part of it
	} {
		key, err := pando.ParseServiceKey(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := o.SuggestService(t.Context(), key, pando.ErrNotFound); !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if err := o.SuggestService(t.Context(), pando.DefaultService("x"), pando.ErrRefused); err == nil {
		t.Error("another error is lost")
	}
}

func TestATargetIsAServiceOrAnInstance(t *testing.T) {
	for text, want := range map[string]struct{ service, instance string }{
		"web":                   {"web", ""},
		"shop/web":              {"shop/web", ""},
		"web/web-7k3fq":         {"web", "web-7k3fq"},
		"shop/web/web-7k3fq":    {"shop/web", "web-7k3fq"},
		"default/web/web-7k3fq": {"web", "web-7k3fq"},
		"shop/webshop":          {"shop/webshop", ""},
	} {
		key, i, err := target(text)
		if err != nil || key.String() != want.service || string(i) != want.instance {
			t.Errorf("%s: %s, %s, %v", text, key, i, err)
		}
	}
	for _, text := range []string{"", "Web", "a/b/c", "/", "web/"} {
		if _, _, err := target(text); !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A service that begins with the name of its tenant is no instance of a service with that name.
func TestAServiceMayBeginWithItsTenant(t *testing.T) {
	var st pando.ServiceStatus
	st.ServiceKey = pando.ServiceKey{Tenant: "shop", Name: "shop-web"}
	env, _ := consoletest.Answering(t, map[string]any{"GET /v1/services/shop-web": st})
	o := Open(&cli.Output{Env: env})
	for text, want := range map[string]struct{ service, instance string }{
		"shop/shop-web":            {"shop/shop-web", ""},
		"shop/shop-7k3fq":          {"shop", "shop-7k3fq"},
		"shop/shop-web/shop-web-0": {"shop/shop-web", "shop-web-0"},
	} {
		key, i, err := TargetOf(t.Context(), o, text)
		if err != nil || key.String() != want.service || string(i) != want.instance {
			t.Errorf("%s: %s, %s, %v", text, key, i, err)
		}
	}
}
