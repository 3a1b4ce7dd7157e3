package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// kernels is where deploy/in-kernel keeps unpacked kernels.
const kernels = "/var/cache/pando-kernels/6.1"

// initrd makes an initial file system with busybox, the modules of a network card, and a web page.
const initrd = `set -eu
root=$1/root; modules=$(echo $2/lib/modules/*)/kernel
mkdir -p $root/bin $root/etc/acpi/PWRF $root/dev $root/proc $root/sys $root/www $root/m
cp -L "$(command -v busybox)" $root/bin/busybox
for name in drivers/acpi/button drivers/input/evdev drivers/virtio/virtio \
	drivers/virtio/virtio_ring drivers/virtio/virtio_pci_modern_dev \
	drivers/virtio/virtio_pci_legacy_dev drivers/virtio/virtio_pci net/core/failover \
	drivers/net/net_failover drivers/net/virtio_net; do cp $modules/$name.ko $root/m/; done
echo of the machine >$root/www/index.html
cat >$root/init <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
for name in evdev button virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci \
	failover net_failover virtio_net; do $b insmod /m/$name.ko; done
until [ -e /sys/class/net/eth0 ]; do $b usleep 50000; done
$b ip addr add 10.0.2.15/24 dev eth0; $b ip link set eth0 up; $b ip route add default via 10.0.2.2
$b acpid -f -l /dev/null -p /acpid.pid &
echo the machine is up
exec $b httpd -f -p 8080 -h /www
INIT
cat >$root/etc/acpi/PWRF/00000080 <<'OFF'
#!/bin/busybox sh
/bin/busybox echo the machine shuts down >/dev/console
/bin/busybox poweroff -f
OFF
chmod 755 $root/init $root/etc/acpi/PWRF/00000080
(cd $root && find . | cpio -o -H newc --quiet) >$1/initrd
cp $2/boot/vmlinuz-* $1/vmlinuz
chmod 644 $1/initrd $1/vmlinuz`

const machine = `name: machine
kind: vm
vm: {kernel: ./vmlinuz, initrd: ./initrd, memory: 160M, append: quiet}
ports: ["80:8080"]
health: {ready: http GET /, ready_within: 3m}
stop_grace_period: 1m
scale: {min: 1, max: 2}
`

// A virtual machine is an instance like any other: it answers at the VIP, has a log of its serial
// console, is counted and limited, scales, drains, shuts down and leaves nothing.
func TestAVirtualMachineServes(t *testing.T) {
	for _, need := range []string{"qemu-system-x86_64", "busybox", "cpio"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skip("needs " + need)
		}
	}
	if _, err := os.Stat(kernels + "/done"); err != nil {
		t.Skip("needs a kernel of deploy/in-kernel in " + kernels)
	}
	t.Parallel()
	p := labtest.Up(t)
	dir := filepath.Dir(p.Write("note", ""))
	out, err := exec.Command("bash", "-c", initrd, "sh", dir, kernels).CombinedOutput()
	if err != nil {
		t.Fatal(err, string(out))
	}
	s := p.Deploy(machine)
	if page := s.Get(labtest.Client, "/"); !strings.Contains(page, "of the machine") {
		t.Errorf("the page is %q", page)
	}
	has(p, p.Pando("logs", "machine"), "the machine is up")
	p.Pando("scale", "machine", "2")
	now := s.AwaitFor(3*labtest.Patience, "two machines serve",
		func(st pando.ServiceStatus) bool { return st.InRotation == 2 })
	if a, b := now.Instances[0], now.Instances[1]; a.IP4 == b.IP4 {
		t.Errorf("both machines have the address %s", a.IP4)
	}
	has(p, p.Pando("stats", "machine"), "/416M")
	p.Pando("scale", "machine", "1")
	left := s.Await("one machine serves", func(st pando.ServiceStatus) bool {
		return st.InRotation == 1 && len(st.Instances) == 1
	}).Instances[0].ID
	gone := now.Instances[0].ID
	if gone == left {
		gone = now.Instances[1].ID
	}
	has(p, p.Pando("logs", "machine", "--instance", string(gone)), "the machine shuts down")
	if page := s.Get(labtest.Client, "/"); !strings.Contains(page, "of the machine") {
		t.Errorf("after the drain the page is %q", page)
	}
	p.Pando("rm", "machine")
}
