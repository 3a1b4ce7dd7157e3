package features

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// A packet that the link does not take is refused with both sizes, before anything is sent.
func TestAPathThatIsTooSmallIsNamed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	done := make(chan struct{})
	go func() { // the thread ends with its network
		defer close(done)
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		for _, line := range []string{"link set lo up",
			"link add name path0 mtu 1329 type veth peer name path1",
			"address add 192.0.2.1/24 dev path0", "address add 2001:db8::1/64 dev path0 nodad",
			"link set path0 up", "link set path1 up",
			"neighbour add 192.0.2.2 lladdr 02:00:00:00:00:01 dev path0",
			"neighbour add 2001:db8::2 lladdr 02:00:00:00:00:01 dev path0"} {
			if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
				t.Errorf("ip %s: %v: %s", line, err, out)
				return
			}
		}
		for at, cases := range map[string]map[int]bool{
			"192.0.2.2:7401":     {1330: false, 1329: true},
			"[2001:db8::2]:7401": {1350: false, 1329: true},
			"127.0.0.1:7401":     {1330: true}, // no such port: it arrived
		} {
			for bytes, want := range cases {
				err := Fits(t.Context(), netip.MustParseAddrPort(at), bytes)
				switch {
				case want && err != nil:
					t.Errorf("%d bytes to %s: %v", bytes, at, err)
				case !want && (!errors.Is(err, pando.ErrInvalid) ||
					!strings.Contains(err.Error(), "takes packets of 1329 bytes")):
					t.Errorf("%d bytes to %s: %v, want the size that fits", bytes, at, err)
				}
			}
		}
	}()
	<-done
}

// A program at the port that never answers delays nothing for long, and is no error.
func TestASilentPathFits(t *testing.T) {
	l, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := l.LocalAddr().(*net.UDPAddr).AddrPort()
	if err := Fits(t.Context(), at, 1330); err != nil {
		t.Error(err)
	}
}
