package spec

import (
	"strings"
	"testing"

	"pando.run/pando"
)

func TestARuntimeIsForImages(t *testing.T) {
	const image = "name: web\nimage: shop/web:1\nruntime: crun\n"
	for text, want := range map[string]string{
		minimal + "runtime: crun":               "a.yaml:3:1: runtime: crun runs images",
		minimal + "runtime: runc":               "want crun",
		image + "grants: [device=kvm]":          "grants: parts of the host",
		image + "replicate: {from: snapshot}":   "replicate.from: ",
		image + "kind: vm\nvm: {kernel: ./k}\n": "image: has no effect in a virtual machine",
	} {
		_, err := Parse("a.yaml", []byte(text), "/d")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	specs, err := Parse("a.yaml", []byte(image), "/d")
	if err != nil || specs[0].Runtime != pando.RuntimeCrun || Check(specs[0]) != nil {
		t.Fatalf("%+v, %v", specs, err)
	}
	if text := string(Format(specs[0])); !strings.Contains(text, "runtime: crun\n") {
		t.Errorf("printed: %s", text)
	}
}
