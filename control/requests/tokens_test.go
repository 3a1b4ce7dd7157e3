package requests

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// A token works from the answer of the request that made it until it is removed or replaced.
func TestATokenLivesUntilItIsRemoved(t *testing.T) {
	c := visitable(t, &answering{})
	secret, other := []byte(strings.Repeat("a", 32)), []byte(strings.Repeat("b", 32))
	k, ann := pando.TokenKey{Tenant: "acme", Name: "ci"}, pando.Asker{Name: "ann"}
	one := pando.Token{TokenKey: k, Hash: pando.TokenHash(secret), Until: c.desk.mirror.Clock.Now().Add(time.Hour)}
	if _, err := c.Token(k, secret); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("before it is made: %v", err)
	}
	if err := c.SetToken(t.Context(), one, false, ann); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Token(k, secret); err != nil || got.By != "ann" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := c.Token(pando.TokenKey{Tenant: "beta", Name: "ci"}, secret); err == nil {
		t.Error("it works for another tenant")
	}
	if err := c.SetToken(t.Context(), one, false, ann); !errors.Is(err, pando.ErrExists) ||
		!strings.Contains(err.Error(), "--replace") {
		t.Errorf("a second one of its name: %v", err)
	}
	one.Hash = pando.TokenHash(other)
	if err := c.SetToken(t.Context(), one, true, ann); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Token(k, secret); err == nil {
		t.Error("the former secret works")
	}
	if all, _ := c.Tokens(t.Context()); len(all) != 1 || all[0].TokenKey != k {
		t.Errorf("%+v", all)
	}
	if err := c.RemoveToken(t.Context(), k, ann); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Token(k, other); err == nil {
		t.Error("a removed token works")
	}
	if err := c.RemoveToken(t.Context(), k, ann); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("remove it again: %v", err)
	}
}

func TestTokensAreBounded(t *testing.T) {
	c := visitable(t, &answering{})
	now := c.desk.mirror.Clock.Now()
	token := func(n int) pando.Token {
		return pando.Token{TokenKey: pando.TokenKey{Tenant: "acme", Name: fmt.Sprint("t", n)},
			Hash: pando.TokenHash(nil), Until: now.Add(time.Hour)}
	}
	for life, want := range map[time.Duration]error{0: pando.ErrInvalid, -1: pando.ErrInvalid,
		pando.TokenLifeMax + time.Hour: pando.ErrInvalid, pando.TokenLifeMax: nil} {
		one := token(0)
		one.Until = now.Add(life)
		if err := c.SetToken(t.Context(), one, true, pando.Asker{}); !errors.Is(err, want) {
			t.Errorf("a life of %s: %v", life, err)
		}
	}
	for n := 1; n < pando.TokensMax; n++ {
		if err := c.SetToken(t.Context(), token(n), false, pando.Asker{}); err != nil {
			t.Fatal(err)
		}
	}
	err := c.SetToken(t.Context(), token(pando.TokensMax), false, pando.Asker{})
	if !errors.Is(err, pando.ErrRefused) {
		t.Errorf("one more: %v", err)
	}
	other := token(1)
	other.Tenant = "beta"
	if err := c.SetToken(t.Context(), other, false, pando.Asker{}); err != nil {
		t.Errorf("of another tenant: %v", err)
	}
}

// The tokens of a tenant end with its record.
func TestTokensEndWithTheirTenant(t *testing.T) {
	c := visitable(t, &answering{})
	for _, of := range []pando.Tenant{"acme", "beta"} {
		one := pando.Token{TokenKey: pando.TokenKey{Tenant: of, Name: "ci"}, Hash: pando.TokenHash(nil),
			Until: c.desk.mirror.Clock.Now().Add(time.Hour)}
		if _, err := c.SetTenant(t.Context(), of, pando.AccountChange{}, pando.Asker{}); err != nil {
			t.Fatal(err)
		}
		if err := c.SetToken(t.Context(), one, false, pando.Asker{}); err != nil {
			t.Fatal(err)
		}
	}
	one := 1
	change := pando.AccountChange{Instances: &one}
	if _, err := c.SetTenant(t.Context(), "acme", change, pando.Asker{}); err != nil {
		t.Fatal(err)
	}
	if err := c.RemoveTenant(t.Context(), "acme", pando.Asker{}); err != nil {
		t.Fatal(err)
	}
	if all, _ := c.Tokens(t.Context()); len(all) != 1 || all[0].Tenant != "beta" {
		t.Errorf("%+v", all)
	}
}
