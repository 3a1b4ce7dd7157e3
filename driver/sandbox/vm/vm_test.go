package vm

import (
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
)

func TestTheCommandHasTheMachineOfTheSpec(t *testing.T) {
	s := pando.Spec{Kind: pando.KindVM, VM: pando.VM{
		Kernel: "/k", Initrd: "/i", Disk: "/a,b.img", Append: "root=/dev/vda", CPUs: 2,
	}, Ports: []pando.Port{{Published: 80, Target: 8080, Protocol: pando.TCP},
		{Published: 53, Target: 5353, Protocol: pando.UDP}}}.WithDefaults()
	words := Command(s)
	line := strings.Join(words, " ")
	for _, want := range []string{"-kernel /k ", "-initrd /i", "-smp 2", "-m 268435456B",
		"snapshot=on,file=/a,,b.img", "hostfwd=tcp::8080-:8080,hostfwd=udp::5353-:5353", "-no-reboot"} {
		if !strings.Contains(line, want) {
			t.Errorf("%q is missing in %s", want, line)
		}
	}
	if !slices.Contains(words, "console=ttyS0 panic=-1 root=/dev/vda") {
		t.Errorf("the kernel's words are not one argument: %q", words)
	}
	if strings.Contains(line, "kvm") {
		t.Errorf("it asks for KVM without the grant: %s", line)
	}
	s.Grants = []pando.Grant{"device=kvm"}
	if line = strings.Join(Command(s), " "); !strings.Contains(line, "-accel kvm -accel tcg") {
		t.Errorf("with the grant: %s", line)
	}
}
