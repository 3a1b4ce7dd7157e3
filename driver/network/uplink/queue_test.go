package uplink

import (
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A link of 8 kbit/s gets 40 packets of 1,000 bytes at once. Its queue has room for 10,000 bytes.
// It keeps some packets and drops the others.
func TestTheQueueOfALink(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a network namespace is made by root")
	}
	runtime.LockOSThread() // for ever: the namespace ends with the thread
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	run := func(command string) {
		t.Helper()
		words := strings.Fields(command)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	run("ip link add queued type veth peer name far")
	run("ip addr add 192.0.2.1/24 dev queued")
	run("ip link set far up")
	run("ip link set queued up")
	run("ip neigh add 192.0.2.9 lladdr 02:00:00:00:00:01 dev queued")
	before, err := Queues()
	if q, known := before["queued"]; err != nil || !known || q.Drops > 0 || q.BacklogBytes > 0 {
		t.Fatalf("a new link: %+v, %v, %v", q, known, err)
	}
	run("tc qdisc replace dev queued root tbf rate 8kbit burst 1600 limit 10000")
	c, err := net.Dial("udp", "192.0.2.9:9")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 40 {
		_, _ = c.Write(make([]byte, 1000)) // a full queue is an error of some writes
	}
	now, err := Queues()
	q := now["queued"]
	if err != nil || q.Drops < 20 || q.BacklogBytes < 5000 || q.BacklogBytes > 10000 ||
		q.BacklogPackets < 5 {
		t.Errorf("a full queue: %+v, %v", q, err)
	}
}
