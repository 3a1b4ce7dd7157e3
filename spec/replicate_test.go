package spec

import (
	"strings"
	"testing"

	"pando.run/pando"
)

func TestReplicateFromASnapshotIsReadAndWritten(t *testing.T) {
	read := func(name string, data []byte) pando.Spec {
		t.Helper()
		specs, err := Parse(name, data, "/d")
		if err != nil || len(specs) != 1 {
			t.Fatalf("%s: %v", data, err)
		}
		return specs[0]
	}
	s := read("a.yaml", []byte("name: web\ncommand: x\nreplicate: {from: snapshot}\n"))
	if !s.Seeded() || !read("b.yaml", Format(s)).Seeded() {
		t.Errorf("read %+v, printed as\n%s", s.Replicate, Format(s))
	}
	plain := s
	if plain.Replicate = (pando.Replicate{}); plain.Seeded() || !s.RunsAs(plain) {
		t.Error("the word replaces instances that run already")
	}
}

func TestReplicateNeedsAProgramThatFitsEveryInstance(t *testing.T) {
	for _, c := range [][2]string{
		{"replicate: {from: image}", "a.yaml:3:19: replicate.from: want snapshot"},
		{"replicate: snapshot", "a.yaml:3:12: replicate: want a map"},
		{"replicate: {form: snapshot}", "did you mean `from`"},
		{"replicate: {plain: true}", "replicate.plain: no snapshots are taken"},
		{"user: root", "a.yaml:4:13: replicate.from: a program of root"},
		{"user: '0:7'", "a program of root"},
		{"image: shop/web", "of an image"},
		{"secrets: {t: /etc/t}", "has the secrets"},
		{"secrets: [token]", "has the secrets"},
		{"configs: {c: {content: x}}", "has the configs"},
		{"kind: job", "a job run to their end"},
		{"volumes: ['d:/d']\nscale: {max: 2}", "volumes of its own"},
		{"kind: stateful\nvolumes: ['d:/d']", "volumes of its own"},
		{"ports: [80]\nendpoints: ['192.0.2.1:80']", "no program"},
	} {
		lines, want := c[0], c[1]
		if !strings.Contains(lines, "replicate") {
			lines += "\nreplicate: {from: snapshot}"
		}
		_, err := Parse("a.yaml", []byte("name: web\ncommand: x\n"+lines+"\n"), "/d")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v\nwant %q", lines, err, want)
		}
	}
	shared := "name: web\ncommand: x\nvolumes: ['d:/d:shared']\nreplicate: {from: snapshot}\n"
	if _, err := Parse("a.yaml", []byte(shared), "/d"); err != nil {
		t.Errorf("a shared volume: %v", err)
	}
	odd := pando.Spec{Name: "web", Command: []string{"x"}, Replicate: pando.Replicate{From: "disk"}}
	err := Check(odd.WithDefaults())
	if err == nil || !strings.Contains(err.Error(), "want snapshot") {
		t.Errorf("an unknown beginning: %v", err)
	}
}
