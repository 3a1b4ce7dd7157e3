package trust

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// FuzzToken reads any text without a panic, and accepts the tokens of this cluster only.
func FuzzToken(f *testing.F) {
	a, err := OpenAuthority(f.TempDir(), time.Now())
	if err != nil {
		f.Fatal(err)
	}
	now := time.Unix(1_700_000_000, 0)
	good, err := a.Token(now.Add(time.Hour), 3)
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{good, " " + good + "\n", good[:20], strings.ToUpper(good), tokenPrefix,
		"", "pando2" + good[6:], good + "="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		err := a.Check(text, now)
		if (err == nil) != (strings.TrimSpace(text) == good) {
			t.Errorf("%q: %v", text, err)
		}
		if err != nil && !errors.Is(err, pando.ErrInvalid) && !errors.Is(err, pando.ErrForbidden) {
			t.Errorf("%q: %v is no sentinel of a token", text, err)
		}
		if _, err := ByToken(text); err != nil && !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	})
}

// A host with a damaged membership reports the file, and does not act as a stranger.
func TestADamagedMembershipIsReported(t *testing.T) {
	a := authority(t)
	i, err := a.Identity("h2", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "trust")
	if m, err := LoadMembership(dir); m != nil || err != nil {
		t.Errorf("a host that has joined no cluster: %+v, %v", m, err)
	}
	if err := (&Membership{Host: "h2", Slot: 2, Identity: i}).Save(dir); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "member.json")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the private key is readable: %v (%v)", info.Mode(), err)
	}
	for name, damaged := range map[string]string{
		"cut":            string(whole[:len(whole)/2]),
		"empty":          "",
		"without a pair": strings.Replace(string(whole), `"pair":"-----BEGIN`, `"pair":"`, 1),
		"without authority": strings.Replace(string(whole), `"authority":"-----BEGIN`, `"authority":"`,
			1),
	} {
		if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		if m, err := LoadMembership(dir); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
}

// A host accepts a new certificate for its own key and name only.
func TestARenewalOfAnotherHostIsRefused(t *testing.T) {
	a, other := authority(t), authority(t)
	now := time.Now()
	mine, err := a.Identity("h2", now)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := a.Identity("h3", now)
	if err != nil {
		t.Fatal(err)
	}
	before := mine.Ends()
	if err := mine.Accept(foreign.own.Load().Certificate[0], a.Certificate().Raw); err == nil {
		t.Error("the certificate of another key is accepted")
	}
	stranger, err := other.Identity("h2", now)
	if err != nil {
		t.Fatal(err)
	}
	if err := mine.Accept(stranger.own.Load().Certificate[0], a.Certificate().Raw); err == nil {
		t.Error("the certificate of another authority is accepted")
	}
	if err := mine.Accept([]byte("noise"), a.Certificate().Raw); err == nil {
		t.Error("noise is accepted")
	}
	if !mine.Ends().Equal(before) {
		t.Error("a refused certificate replaces the old one")
	}
}
