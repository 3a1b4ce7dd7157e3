package process

import (
	"fmt"
	"net"
	"os"
	"testing"

	"pando.run/pando/driver/network/sockets"
)

// The kernel probes the silent client of a socket that another process holds. A socket that is not
// wanted stays as it is.
func TestTheClientsOfAProgramAreProbed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("sockets of other processes need root")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ends := map[string]net.Conn{}
	quiet := net.Dialer{KeepAlive: -1}
	for _, name := range []string{"wanted", "other"} {
		if ends[name], err = quiet.Dial("tcp", l.Addr().String()); err != nil {
			t.Fatal(err)
		}
		defer ends[name].Close()
	}
	talkOf := func(name string) sockets.Talk {
		all, err := sockets.Talks()
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range all {
			if k.Local.String() == ends[name].LocalAddr().String() {
				return k
			}
		}
		t.Fatalf("the connection %q is missing", name)
		return sockets.Talk{}
	}
	wanted := map[string]bool{fmt.Sprintf("socket:[%d]", talkOf("wanted").Inode): true}
	if err := probeSockets(os.Getpid(), wanted); err != nil || len(wanted) > 0 {
		t.Fatalf("%v, %v are left", err, wanted)
	}
	if !talkOf("wanted").Probed || talkOf("other").Probed {
		t.Errorf("probed: wanted %v, other %v", talkOf("wanted").Probed, talkOf("other").Probed)
	}
	if err := probeSockets(1<<22+1, map[string]bool{"socket:[1]": true}); err != nil {
		t.Errorf("a process that has ended is an error: %v", err)
	}
}
