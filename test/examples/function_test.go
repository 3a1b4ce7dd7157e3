package examples

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The function in Go is built and tried on a capture; what passes is what a plain count per flow says.
func TestAFunctionInGo(t *testing.T) {
	t.Parallel()
	unit, err := filepath.Abs("../../bin/pando-unit")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(unit); err != nil {
		t.Skip("bin/pando-unit is not there: deploy/build-unit builds it with cargo")
	}
	dir := t.TempDir()
	function, capture := filepath.Join(dir, "function-go"), filepath.Join(dir, "made.pcap")
	if err := os.CopyFS(function, os.DirFS("../../examples/function-go")); err != nil {
		t.Fatal(err)
	}
	fn := func(args ...string) []byte {
		out, err := exec.Command(unit, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("pando fn %v: %v\n%s", args, err, out)
		}
		return out
	}
	fn("build", function)
	fn("generate", capture, "--flows", "400")
	var said struct {
		Packets int
		Fates   map[string]int
		Traps   []string
	}
	if err := json.Unmarshal(fn("test", filepath.Join(function, "function-go.wasm"), "--pcap", capture, "-o", "json"), &said); err != nil {
		t.Fatal(err)
	}
	packets, pass := count(t, capture)
	if pass == packets || said.Packets != packets || said.Fates["passed"] != pass || said.Fates["dropped"] != packets-pass || len(said.Traps) > 0 {
		t.Errorf("of %d packets %d are among the first hundred of their flows; the function says %+v", packets, pass, said)
	}
}

// count reads a pcap of little-endian nanoseconds and Ethernet, as `pando fn generate` writes it, and says how many packets
// there are and how many are among the first hundred of their flows.
func count(t *testing.T, name string) (packets, pass int) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	flows := map[string]int{}
	for b = b[24:]; len(b) > 0; packets++ {
		length := binary.LittleEndian.Uint32(b[8:])
		key := flow(b[16 : 16+length])
		if flows[key]++; flows[key] <= 100 {
			pass++
		}
		b = b[16+length:]
	}
	return packets, pass
}

// flow is what both directions of a conversation share: protocol, and the two ends in order.
func flow(frame []byte) string {
	protocol, at, long, transport := frame[23], 26, 4, 34
	if frame[12] == 0x86 {
		protocol, at, long, transport = frame[20], 22, 16, 54
	}
	end := func(n int) string {
		return string(frame[at+n*long:][:long]) + string(frame[transport+2*n:][:2])
	}
	return string(protocol) + min(end(0), end(1)) + max(end(0), end(1))
}
