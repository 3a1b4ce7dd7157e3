package etcd

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// listeners returns the listening sockets of this process, as arguments of net.Dial.
func listeners(t *testing.T) (all [][2]string) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	own := map[string]bool{}
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil {
			own[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
		}
	}
	// Num RefCount Protocol Flags Type St Inode Path
	for _, line := range lines(t, "/proc/self/net/unix") {
		if f := strings.Fields(line); len(f) == 8 && f[3] == "00010000" && own[f[6]] {
			all = append(all, [2]string{"unix", f[7]})
		}
	}
	// sl local remote st queues timer retransmits uid timeout inode
	for _, line := range lines(t, "/proc/self/net/tcp") {
		if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && own[f[9]] {
			all = append(all, [2]string{"tcp", address(t, f[1])})
		}
	}
	return all
}

func lines(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n")[1:]
}

// address parses an address of the kernel, such as 0100007F:1CE8.
func address(t *testing.T, text string) string {
	t.Helper()
	ip, port, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(ip)
	var n int
	if _, err2 := fmt.Sscanf(port, "%x", &n); err != nil || err2 != nil || len(b) != 4 {
		t.Fatalf("the address %q", text)
	}
	return fmt.Sprintf("%d.%d.%d.%d:%d", b[3], b[2], b[1], b[0], n)
}

// says sends one HTTP request to a socket and returns the answer.
func says(t *testing.T, at [2]string, request string) []byte {
	t.Helper()
	c, err := net.Dial(at[0], at[1])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, request); err != nil {
		return nil
	}
	out, _ := io.ReadAll(io.LimitReader(c, 1<<16)) // an error means no answer
	return out
}

// A raft message to a peer listener writes any record without authentication. It could start
// programs as root on every host.
func TestStrangersFindNoPeerListener(t *testing.T) {
	dir := tempDir(t)
	s, _ := start(t, dir)
	before := commit(t, s.Registry(), pando.Txn{Put: []pando.Stored{service("web")}})
	doors := listeners(t)
	if len(doors) == 0 {
		t.Fatal("the client socket is not among the listening sockets: the test looks in the wrong place")
	}
	for _, at := range doors {
		if strings.HasPrefix(at[1], "@") {
			t.Errorf("the abstract socket %s: every local user can open it", at[1])
		}
		for _, request := range []string{
			"GET /members", "GET /version", "POST /raft", "POST /raft/snapshot", "POST /downgrade/enabled",
		} {
			body := "\x08\x03"
			got := says(t, at, fmt.Sprintf("%s HTTP/1.1\r\nHost: x\r\nX-Server-From: 1\r\n"+
				"X-Server-Version: 3.7.3\r\nX-Min-Cluster-Version: 3.0.0\r\n"+
				"Content-Length: %d\r\nConnection: close\r\n\r\n%s", request, len(body), body))
			if bytes.Contains(got, []byte("HTTP/1.1")) ||
				bytes.Contains(bytes.ToLower(got), []byte("etcd")) {
				t.Errorf("%s %s: %s answers %.200q", at[0], at[1], request, got)
			}
		}
	}
	after, err := s.Registry().Snapshot(t.Context(), pando.Root)
	if err != nil || after.Revision != before || len(after.Records) != 1 {
		t.Errorf("the store was at revision %d and is at %d with %d records (%v)",
			before, after.Revision, len(after.Records), err)
	}
	if _, err := os.Stat(dir + "/peer"); err == nil {
		t.Errorf("%s/peer exists", dir)
	}
}
