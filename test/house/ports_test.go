package house

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"testing"

	"pando.run/pando"
)

// A port of Pando in a text or a name's value: of the hundred of OwnPortFirst.
var ownPort = regexp.MustCompile(`(?:^|[^0-9A-Za-z.])(74\d\d)(?:$|[^0-9A-Za-z])`)

// ownPorts returns the ports of Pando that the constants and texts of a file name, by their line.
func ownPorts(s source) map[int]int {
	ports := map[int]int{}
	ast.Inspect(s.file, func(n ast.Node) bool {
		l, ok := n.(*ast.BasicLit)
		if !ok || l.Kind != token.INT && l.Kind != token.STRING {
			return true
		}
		for _, m := range ownPort.FindAllStringSubmatch(l.Value, -1) {
			port, _ := strconv.Atoi(m[1])
			ports[s.fset.Position(l.Pos()).Line] = port
		}
		return true
	})
	return ports
}

// No service publishes a port of Pando at the hosts, and a port that was added later counts.
func TestEveryPortOfPandoIsWithinItsRange(t *testing.T) {
	last := 0
	for _, s := range sources(t) {
		if s.isTest() || s.generated || s.dir == "adapter/compose" { // it names ports of other programs
			continue
		}
		for line, port := range ownPorts(s) {
			if port < pando.OwnPortFirst || port > pando.OwnPortLast {
				t.Errorf("%s:%d: port %d is beyond pando.OwnPortFirst to OwnPortLast", s.path, line, port)
			}
			last = max(last, port)
		}
	}
	if last != pando.OwnPortLast {
		t.Errorf("the last port in the sources is %d, and pando.OwnPortLast %d", last, pando.OwnPortLast)
	}
}

func TestAPortOfPandoIsFound(t *testing.T) {
	for text, want := range map[string]bool{
		"7405": true, `"127.0.0.1:7400"`: true, `":7401"`: true, "74": false, "74051": false,
		"67404288": false, `"https://ADDRESS:7401 of"`: true, "0x7404": false,
	} {
		if got := ownPort.MatchString(text); got != want {
			t.Errorf("%s: found %t", text, got)
		}
	}
}
