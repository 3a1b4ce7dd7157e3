package process

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// pair returns two connected stream sockets with a small buffer.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for n, fd := range fds {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096); err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ends[n] = c.(*net.UnixConn)
		_ = ends[n].SetDeadline(time.Now().Add(5 * time.Second))
	}
	return ends[0], ends[1]
}

// A message is longer than the buffer of the socket. It arrives whole, with its descriptor.
func TestALongMessageArrivesWhole(t *testing.T) {
	for _, fd := range []int{-1, int(os.Stderr.Fd())} {
		a, b := pair(t)
		want := reply{Output: bytes.Repeat([]byte{7}, 1<<20)}
		sent := make(chan error, 1)
		go func() { sent <- send(a, want, fd) }()
		var got reply
		f, err := receive(b, &got)
		if err := <-sent; err != nil {
			t.Fatal("send:", err)
		}
		if err != nil || !bytes.Equal(got.Output, want.Output) || (f != nil) != (fd >= 0) {
			t.Errorf("descriptor %d: got %d bytes, descriptor %v, %v", fd, len(got.Output), f, err)
		}
		if f != nil {
			f.Close()
		}
	}
}

// A message that no shim takes is refused by its sender, with both numbers.
func TestNoMessageIsSentThatNoShimTakes(t *testing.T) {
	a, _ := pair(t)
	err := send(a, reply{Output: make([]byte, messageBytesMax)}, -1)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint(messageBytesMax)) {
		t.Error(err)
	}
}

// An instance starts with as much environment, configs and secrets as a spec may have.
func TestAnInstanceStartsWithAllThatASpecAllows(t *testing.T) {
	d := newDriver(t, 1)
	const variables = 256
	spec := pando.Spec{Name: "web", WorkingDir: "/", StopSeconds: 0.3,
		Environment: map[string]string{}}
	for n := range variables {
		spec.Environment[fmt.Sprintf("V%d", n)] = strings.Repeat("x", 1024)
	}
	var configs []pando.ConfigFile
	for size := 0; size < pando.ConfigsBytesMax; size += pando.ConfigBytesMax {
		configs = append(configs, pando.ConfigFile{Name: fmt.Sprintf("c%d", size), Mode: 0o444,
			Content: bytes.Repeat([]byte{'<'}, pando.ConfigBytesMax)})
	}
	secrets := map[string][]byte{}
	const each = pando.SecretBytesMax
	for size := 0; size < pando.SecretsBytesMax; size += pando.SecretBytesMax {
		secrets[fmt.Sprintf("s%d", size)] = bytes.Repeat([]byte{'<'}, each)
	}
	spec.Command = []string{"/bin/sh", "-c", "env | grep -c ^V; cat /run/configs/* | wc -c; cat " +
		"/run/secrets/" + strings.Join(slices.Sorted(maps.Keys(secrets)), " /run/secrets/") +
		" | wc -c; exec sleep 60"} // no one lists the folder of the secrets
	spec = spec.WithDefaults()
	b, err := d.Start(t.Context(), pando.SandboxSpec{
		Instance: pando.Instance{ID: "web-1", Service: spec.Key(), Role: pando.RoleFirst}, Spec: spec,
		VIP4: vip, Configs: configs, Secrets: secrets})
	if err != nil {
		t.Fatal(err)
	}
	awaitLast(t, b, fmt.Sprint(len(secrets)*each))
	want := fmt.Sprint([]string{fmt.Sprint(variables), fmt.Sprint(len(configs) * pando.ConfigBytesMax),
		fmt.Sprint(len(secrets) * each)})
	if got := fmt.Sprint(b.LastLines(3)); got != want {
		t.Errorf("in the instance: %s, want %s", got, want)
	}
}
