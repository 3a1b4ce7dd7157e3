package spec

import (
	"strings"
	"testing"

	"pando.run/pando"
)

func TestAMachineIsRead(t *testing.T) {
	text := "name: web\nkind: vm\nports: [\"80:8080\"]\nhealth: {ready: http GET /}\n" +
		"vm: {kernel: ./vmlinuz, disk: /d.img, memory: 64M, cpus: 2, append: quiet}\n"
	all, err := Parse("web.yaml", []byte(text), "/srv")
	if err != nil {
		t.Fatal(err)
	}
	s := all[0].WithDefaults()
	want := pando.VM{Kernel: "/srv/vmlinuz", Disk: "/d.img", MemoryBytes: 64 << 20, CPUs: 2,
		Append: "quiet"}
	if err := Check(s); err != nil || s.VM != want ||
		s.Resources.MemoryBytes != 64<<20+pando.VMOverheadBytes {
		t.Errorf("%+v, %d bytes, %v", s.VM, s.Resources.MemoryBytes, err)
	}
}

func TestMachinesThatCannotBe(t *testing.T) {
	const head = "name: web\nhealth: {ready: tcp 80}\n"
	for text, want := range map[string]string{
		head + "kind: vm": "kernel: is missing",
		head + "kind: vm\nvm: {kernel: k, memory: 1M}":            "memory: 1048576 bytes",
		head + "kind: vm\nvm: {kernel: k, cpus: 65}":              "from 1 to 64",
		head + "kind: vm\nvm: {kernel: k}\ncommand: x":            "command: has no effect in a virtual",
		head + "command: x\nvm: {kernel: k}":                      "vm: has an effect with kind: vm",
		"name: web\nkind: vm\nvm: {kernel: k}":                    "health: add ready",
		head + "kind: vm\nvm: {kernel: k}\ngrants: [netns: host]": "netns: host has no effect",
	} {
		all, err := Parse("web.yaml", []byte(text), "/srv")
		if err == nil {
			err = Check(all[0].WithDefaults())
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
