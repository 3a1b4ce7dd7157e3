package proof

import (
	"fmt"
	"os"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func TestABookRemembersWhoSentABlob(t *testing.T) {
	b := Book{t.TempDir()}
	one, two := v1.Hash{Algorithm: "sha256", Hex: "aa"}, v1.Hash{Algorithm: "sha256", Hex: "bb"}
	for range 2 {
		if err := b.Sent("shop/web", one); err != nil {
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
	for n := range repositoriesMax + 5 {
		if err := b.Sent(fmt.Sprint(n), one); err != nil {
			t.Fatal(err)
		}
	}
	if all := b.Of(one); len(all.Repositories) != repositoriesMax || b.HasSent("shop/web", one) || !b.Unpacks(one, two) {
		t.Errorf("%d repositories are known", len(all.Repositories))
	}
	if err := os.WriteFile(b.Dir+"/aa", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b.HasSent("shop/web", one) {
		t.Error("a broken file proves something")
	}
}
