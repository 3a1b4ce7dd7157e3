package image

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"pando.run/pando"
)

// rule is what the owner of a host says about one registry.
type rule struct {
	inside bool // tokens may use it, wherever its address is
	plain  bool // it speaks HTTP without TLS
}

// rules are by registry, HOST[:PORT].
type rules map[string]rule

const rulesMax = 1 << 20 // bytes of the file

// readRules reads a file of one registry a line: HOST[:PORT], and then words. A missing file has no
// rules.
func readRules(path string) (rules, error) {
	if path == "" {
		return nil, nil
	}
	b, err := readBounded(path, rulesMax)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the list of registries: %w", err)
	}
	out := rules{}
	for n, line := range strings.Split(string(b), "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		host, r, err := ruleOf(words)
		if err != nil {
			return nil, fmt.Errorf("%w: %s:%d: %w", pando.ErrInvalid, path, n+1, err)
		}
		out[host] = rule{out[host].inside || r.inside, out[host].plain || r.plain}
	}
	return out, nil
}

// ruleOf reads the words of one line.
func ruleOf(words []string) (host string, r rule, err error) {
	reg, err := name.NewRegistry(words[0], name.StrictValidation)
	if err != nil || strings.Contains(words[0], "/") {
		return "", r, fmt.Errorf("%q is no registry; want HOST or HOST:PORT", words[0])
	}
	for _, word := range words[1:] {
		switch word {
		case "inside":
			r.inside = true
		case "http":
			r.plain = true
		default:
			return "", r, fmt.Errorf("unknown word %q; want inside or http", word)
		}
	}
	if r == (rule{}) {
		return "", r, fmt.Errorf("%s has no word; want inside, http or both", words[0])
	}
	return reg.RegistryStr(), r, nil
}
