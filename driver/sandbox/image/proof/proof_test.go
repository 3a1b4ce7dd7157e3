package proof

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"pando.run/pando"
)

func TestABookRemembersWhoSentABlob(t *testing.T) {
	b := Book{t.TempDir()}
	one, two := v1.Hash{Algorithm: "sha256", Hex: "aa"}, v1.Hash{Algorithm: "sha256", Hex: "bb"}
	for range 2 {
		if err := b.Sent("shop", "shop/web", one); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Unpacked(one, two); err != nil {
		t.Fatal(err)
	}
	again := Book{b.Dir}
	if !again.HasSent("shop/web", one) || again.HasSent("evil/x", one) || again.HasSent("shop/web", two) {
		t.Errorf("of %s it knows %+v", one, again.Of(one))
	}
	if !again.Unpacks(one, two) || again.Unpacks(one, one) || again.Unpacks(two, two) {
		t.Errorf("of %s it knows %+v", one, again.Of(one))
	}
	full := b.Of(one)
	for n := range repositoriesMax - 1 {
		full.Senders = append(full.Senders, Sender{"evil", fmt.Sprint(n)})
	}
	if err := b.write(one, full); err != nil {
		t.Fatal(err)
	}
	if err := b.Sent("evil", "one more", one); err != nil || !b.HasSent("one more", one) {
		t.Errorf("the newest is not kept: %v", err)
	}
	if n := len(b.Of(one).Senders); n != repositoriesMax || b.HasSent("0", one) || !b.Unpacks(one, two) {
		t.Errorf("%d repositories are known", n)
	}
	if !b.HasSent("shop/web", one) {
		t.Error("the repositories of one tenant push out that of another")
	}
	if err := os.WriteFile(b.Dir+"/aa", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b.HasSent("shop/web", one) {
		t.Error("a broken file proves something")
	}
}

// The longest names of all repositories fit a file, and a file of a former build is read.
func TestABookReadsItsFiles(t *testing.T) {
	b, h := Book{t.TempDir()}, v1.Hash{Algorithm: "sha256", Hex: "aa"}
	if err := os.WriteFile(b.Dir+"/aa", []byte(`{"repositories":["old/web"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Sent("shop", "shop/web", h); err != nil || !b.HasSent("old/web", h) {
		t.Errorf("of a former build it knows %+v (%v)", b.Of(h), err)
	}
	r := Record{Senders: slices.Repeat([]Sender{{pando.Tenant(strings.Repeat("t", 63)),
		strings.Repeat("r", 512)}}, repositoriesMax-1)}
	if err := b.write(h, r); err != nil {
		t.Fatal(err)
	}
	if err := b.Sent("shop", "shop/web", h); err != nil || len(b.Of(h).Senders) != repositoriesMax {
		t.Errorf("of a full file it knows %d (%v)", len(b.Of(h).Senders), err)
	}
}
