package examples

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The Go function is built and tested on a capture. The packets that pass must match a plain count
// per flow.
func TestAFunctionInGo(t *testing.T) {
	t.Parallel()
	unit, dir := functions(t), t.TempDir()
	function, capture := filepath.Join(dir, "function-go"), filepath.Join(dir, "made.pcap")
	if err := os.CopyFS(function, os.DirFS("../../sdk/function/go")); err != nil {
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
	err := json.Unmarshal(
		fn("test", filepath.Join(function, "function-go.wasm"), "--pcap", capture, "-o", "json"), &said)
	if err != nil {
		t.Fatal(err)
	}
	packets, pass := count(t, capture)
	if pass == packets || said.Packets != packets || said.Fates["passed"] != pass ||
		said.Fates["dropped"] != packets-pass || len(said.Traps) > 0 {
		t.Errorf("of %d packets %d are among the first hundred of their flows; the function reports %+v",
			packets, pass, said)
	}
}

// everything uses every feature of a function in Go. It passes as many packets per flow as its
// configuration allows, and reports the first of each with its lease. It makes each packet one byte
// longer, and prints.
const everything = `package main

import "fmt"

var limit byte

func init() {
	Register("everything", 1, each)
	Configure(func(config []byte) int32 {
		if n, _ := fmt.Sscanf(string(config), "limit=%d", &limit); n != 1 {
			return 7
		}
		return 0
	})
	WantLeases()
}

func each(p *Packet) bool {
	number, ok := p.Lease()
	if !ok || !p.HasState() && !p.Report(number) {
		return false
	}
	p.State()[0] = min(p.State()[0]+1, 255)
	p.Put()
	return p.Resize(uint32(len(p.Data())+1)) && !p.Resize(1<<20) && p.State()[0] <= limit
}

func main() {}
`

func TestAllThatAFunctionInGoCanDo(t *testing.T) {
	t.Parallel()
	unit, dir := functions(t), t.TempDir()
	run := func(code int, args ...string) []byte {
		t.Helper()
		command := exec.Command(unit, args...)
		command.Dir = dir
		out, err := command.CombinedOutput()
		if command.ProcessState.ExitCode() != code {
			t.Fatalf("pando fn %v: %v instead of exit code %d\n%s", args, err, code, out)
		}
		return out
	}
	run(0, "new", "--lang", "go", "everything")
	if err := os.WriteFile(filepath.Join(dir, "everything", "main.go"), []byte(everything),
		0o644); err != nil {
		t.Fatal(err)
	}
	run(0, "build", "everything")
	run(0, "generate", "in.pcap", "--flows", "50")
	if out := run(3, "test", "everything/everything.wasm", "--pcap", "in.pcap", "--set",
		"limit=few"); !strings.Contains(string(out), "complaint 7") {
		t.Errorf("a configuration that it refuses: %s", out)
	}
	var said struct {
		Fates  map[string]int
		Flows  int
		Events []struct{ Code int }
	}
	out := run(0, "test", "everything/everything.wasm", "--pcap", "in.pcap", "--set", "limit=3",
		"--write", "out.pcap", "-o", "json")
	if err := json.Unmarshal(out, &said); err != nil {
		t.Fatal(err)
	}
	codes := map[int]bool{}
	for _, e := range said.Events {
		codes[e.Code] = true
	}
	if said.Flows != 50 || len(said.Events) != 50 || len(codes) != 50 || said.Fates["passed"] != 50*3 {
		t.Errorf("50 flows, a lease of its own each, and 3 packets of each pass: %+v", said)
	}
	in, err := os.Stat(filepath.Join(dir, "in.pcap"))
	if err != nil {
		t.Fatal(err)
	}
	if written, err := os.Stat(filepath.Join(dir, "out.pcap")); err != nil ||
		written.Size() >= in.Size() {
		t.Errorf("150 packets are fewer bytes than all: %v", err)
	}
}

// Each user error exits with a code for its kind and a message with the next step.
func TestWrongTurnsOfFunctions(t *testing.T) {
	t.Parallel()
	unit, dir := functions(t), t.TempDir()
	built, err := filepath.Abs("../../function/functions")
	if err != nil {
		t.Fatal(err)
	}
	nat, ids := filepath.Join(built, "nat", "nat.wasm"), filepath.Join(built, "ids", "ids.wasm")
	badFiles(t, dir)
	places := []string{"--run-dir", filepath.Join(dir, "run"), "--data-dir",
		filepath.Join(dir, "data")}
	for _, c := range []struct {
		args []string
		code int
		word string
	}{
		{[]string{"new", "mine"}, 0, "pando fn build mine"},
		{[]string{"new", "mine"}, 6, "another directory"},
		{[]string{"new", "my function"}, 3, "at most 35 letters"},
		{[]string{"build", "nowhere"}, 4, "`pando fn new nowhere`"},
		{[]string{"build", "."}, 3, "`pando fn new DIR`"},
		{[]string{"build", "mine", "-o", "json"}, 0, `"file":`},
		{[]string{"generate", "in.pcap", "--flows", "200"}, 0, "200 flows"},
		{[]string{"test", "mine/mine.wasm"}, 2, "--pcap"},
		{[]string{"test", "mine/mine.wasm", "--pcap", "no.pcap"}, 4, "`pando fn generate FILE`"},
		{[]string{"test", "mine/mine.wasm", "--pcap", "in.pcap", "--expect", "no.pcap"}, 4,
			"--write no.pcap instead of --expect"},
		{[]string{"generate", "no/in.pcap"}, 4,
			"write no/in.pcap: No such file or directory (os error 2): `mkdir -p no`"},
		{[]string{"simulate", "--captures", "nowhere"}, 4,
			"read nowhere: No such file or directory (os error 2): want a folder"},
		{[]string{"test", "mine/mine.wasm", "--pcap", "mine/mine.c"}, 3, "neither pcap nor pcapng"},
		{[]string{"test", "mine/mine.wasm", "--pcap", "cut.pcap"}, 3,
			"packet 1 is cut off or broken; the 0 before it are whole"},
		{[]string{"test", "mine/mine.wasm", "--pcap", "radio.pcap"}, 3, "link type 127 is not supported"},
		{[]string{"replay", "cut.pcap", "--iface", "lo"}, 3, "tcpdump -r cut.pcap"},
		{[]string{"replay", "in.pcap", "--iface", "pando-no-dev"}, 4, "`ip link`"},
		{[]string{"receive", "--iface", "pando-no-dev"}, 4, "`ip link`"},
		{[]string{"test", "no.wasm", "--pcap", "in.pcap"}, 4, "`pando fn build DIR`"},
		{[]string{"test", "mine", "--pcap", "in.pcap"}, 3, "mine/mine.wasm"},
		{[]string{"test", "mine/mine.c", "--pcap", "in.pcap"}, 3, "not a WebAssembly module"},
		{[]string{"test", "mine/mine.wasm", "--pcap", "in.pcap", "--expect", "in.pcap"}, 1,
			"NOT AS EXPECTED"},
		{[]string{"test", nat, "--pcap", "in.pcap"}, 3, "docs/guides/network-function.md"},
		{[]string{"test", nat, "--pcap", "in.pcap", "--set", "address"}, 3, "KEY=VALUE"},
		{[]string{"test", nat, "--pcap", "in.pcap", "--set", "address=1.2.3"}, 3, "complaint 2"},
		{[]string{"test", nat, "--pcap", "in.pcap", "--set", "address=192.0.2.1", "--ports", "9-1"}, 2,
			"the block 9-1 is empty"},
		{[]string{"test", ids, "--pcap", "in.pcap"}, 3, "--rules FILE"},
		{[]string{"test", ids, "--pcap", "in.pcap", "--rules", "no.rules"}, 4, "read no.rules"},
		{[]string{"test", ids, "--pcap", "in.pcap", "--rules", "bad.rules"}, 3,
			"bad.rules:2: a quote is not closed"},
		{[]string{"test", nat, "--pcap", "in.pcap", "--set", "tan.address=192.0.2.1"}, 3, "only nat"},
		{[]string{"test", nat, "--pcap", "in.pcap", "--rules", "in.rules"}, 3, "only nat"},
		{append([]string{"run", nat, "--iface", "pando-no-dev"}, places...), 4, "`ip link`"},
		{append([]string{"logs", "nobody"}, places...), 4, "`pando fn ls`"},
		{append([]string{"rm", "nobody"}, places...), 4, "`pando fn ls`"},
		{append([]string{"ls", "-o", "json"}, places...), 0, "[]"},
		{[]string{"simulate", "--captures", ".", "best"}, 3, "use vanilla"},
	} {
		command := exec.Command(unit, c.args...)
		command.Dir = dir
		out, err := command.CombinedOutput()
		code := command.ProcessState.ExitCode()
		if code != c.code || !strings.Contains(string(out), c.word) {
			t.Errorf("pando fn %v: exit code %d (%v) and no %q, instead of %d:\n%s",
				c.args, code, err, c.word, c.code, out)
		}
	}
}

// badFiles writes a truncated capture, a capture of IEEE 802.11 frames (link type 127), and broken
// rules.
func badFiles(t *testing.T, dir string) {
	t.Helper()
	capture := func(linktype uint32, packet string) string {
		var file []byte
		for _, field := range []uint32{0xa1b2c3d4, 4<<16 | 2, 0, 0, 1 << 18, linktype, 1, 0, 4, 4} {
			file = binary.LittleEndian.AppendUint32(file, field)
		}
		return string(file) + packet
	}
	for name, text := range map[string]string{
		"cut.pcap": capture(1, "ab"), "radio.pcap": capture(127, "abcd"),
		"bad.rules": "# rules\nalert ip any any -> any any (content:\"open; sid:1;)\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// functions returns the path of the program that runs functions.
func functions(t *testing.T) string {
	t.Helper()
	unit, err := filepath.Abs("../../bin/pando-unit")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(unit); err != nil {
		t.Skip("bin/pando-unit is not there (deploy/build-unit): make test-all runs it")
	}
	return unit
}

// count reads a pcap of little-endian nanoseconds and Ethernet, as `pando fn generate` writes it.
// It returns the number of packets, and the number that are among the first hundred of their flow.
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

// flow returns the key that both directions of a conversation share: protocol, and the two ends in
// order.
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
