package image

import (
	"archive/tar"
	"errors"
	"os"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"pando.run/pando"
)

// The server has no right to unpack layers. It brings them, and the agent of its host unpacks.
func TestAServerLeavesUnpackingToTheAgent(t *testing.T) {
	server, l := open(t), newLayout(t)
	agent := *server.vault
	server.Packed = true
	l.add(t, "v1", "amd64", v1.Config{Entrypoint: []string{"/app"}},
		archive(t, file{name: "bin/", kind: tar.TypeDir}), archive(t, file{name: "app", body: "#!"}))
	i, _ := pulled(t, server, "oci:"+l.dir+":v1")
	if entries, err := os.ReadDir(server.LayersDir()); err != nil || len(entries) > 0 {
		t.Errorf("the server unpacked %v, %v", entries, err)
	}
	if all, err := server.List(); err != nil || len(all) != 1 || all[0].Unpacked {
		t.Errorf("the server lists %+v, %v", all, err)
	}
	if err := os.RemoveAll(l.dir); err != nil { // the agent needs no more than the store
		t.Fatal(err)
	}
	for range 2 { // the second time, there is nothing to do
		if err := server.Pull(t.Context(), i, nil); err != nil {
			t.Errorf("the server pulls again: %v", err)
		}
	}
	own, err := Open(agent.Config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := own.Root(i.Digest, ""); !errors.Is(err, pando.ErrNotReady) {
		t.Errorf("the layers are unpacked already: %v", err)
	}
	if err := own.Pull(t.Context(), i, nil); err != nil {
		t.Fatal(err)
	}
	if r, err := own.Root(i.Digest, ""); err != nil || len(r.Layers) != 2 {
		t.Errorf("the agent has %+v, %v", r, err)
	}
}
