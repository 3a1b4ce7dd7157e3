package process

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"pando.run/pando"
)

// searchMax is the number of domains that resolvers search at most.
const searchMax = 6

// resolv returns the resolv.conf of a sandbox. The host's agent is its only name server, and forwards
// the names of others: musl asks all name servers at once and takes the first answer, also if it is
// that a name does not exist. The names of the tenant's services come first in the search, before the
// domains of the host, so that NAME alone finds NAME.TENANT.pando. An ordinal finds the others by
// their names alone as well. The options of the host stay. No tenant: the sandbox waits in the pool.
func resolv(tenant pando.Tenant, ordinals pando.ServiceName, host []byte) []byte {
	var options, search []string
	for line := range strings.Lines(string(host)) {
		switch words := strings.Fields(line); {
		case len(words) == 0:
		case words[0] == "search" || words[0] == "domain":
			search = words[1:] // the last line counts, as for the resolver
		case words[0] == "options":
			options = append(options, words[1:]...)
		}
	}
	if tenant != "" {
		search = slices.Insert(slices.Clone(search), 0, string(tenant)+".pando")
	}
	if ordinals != "" {
		search = slices.Insert(search, 0, string(ordinals)+"."+string(tenant)+".pando")
	}
	text := "nameserver " + pando.Gateway4.String() + "\n"
	if search = search[:min(len(search), searchMax)]; len(search) > 0 {
		text += "search " + strings.Join(search, " ") + "\n"
	}
	if len(options) > 0 {
		text += "options " + strings.Join(options, " ") + "\n"
	}
	return []byte(text)
}

// search lets the instance in the sandbox find services of its tenant by their names alone. The
// file is mounted in the sandbox, so it is written in place.
func (s *slot) search(tenant pando.Tenant, ordinals pando.ServiceName) error {
	host, _ := os.ReadFile("/etc/resolv.conf")
	path := filepath.Join(s.dir, "resolv.conf")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return fmt.Errorf("name the tenant in %s: %w", path, err)
	}
	_, err = f.Write(resolv(tenant, ordinals, host))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
