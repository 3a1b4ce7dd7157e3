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

// resolver are the words of a spec for resolv.conf. No tenant: the sandbox waits in the pool.
type resolver struct {
	tenant   pando.Tenant
	ordinals pando.ServiceName // of a stateful service
	// domains and options are in place of those of the host.
	domains, options []string
}

func resolverOf(spec pando.SandboxSpec) resolver {
	r := resolver{tenant: spec.Instance.Service.Tenant, domains: spec.Spec.DNSSearch,
		options: spec.Spec.DNSOptions}
	if spec.Spec.Stateful() {
		r.ordinals = spec.Spec.Name
	}
	return r
}

// conf returns the resolv.conf of a sandbox. The host's agent is its only name server, and forwards
// the names of others: musl asks all name servers at once and takes the first answer, also if it is
// that a name does not exist. The names of the tenant's services come first in the search, before the
// other domains, so that NAME alone finds NAME.TENANT.pando. An ordinal finds the others by their
// names alone as well. The domain "." stands for no further one.
func (r resolver) conf(host []byte) []byte {
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
	if len(r.domains) > 0 {
		search = slices.DeleteFunc(slices.Clone(r.domains), func(d string) bool { return d == "." })
	}
	if len(r.options) > 0 {
		options = r.options
	}
	if r.tenant != "" {
		search = slices.Insert(slices.Clone(search), 0, string(r.tenant)+".pando")
	}
	if r.ordinals != "" {
		search = slices.Insert(search, 0, string(r.ordinals)+"."+string(r.tenant)+".pando")
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

// resolve writes the resolv.conf of the sandbox for an instance. The file is mounted in the sandbox,
// so it is written in place.
func (s *slot) resolve(r resolver) error {
	host, _ := os.ReadFile("/etc/resolv.conf")
	path := filepath.Join(s.dir, "resolv.conf")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return fmt.Errorf("name the tenant in %s: %w", path, err)
	}
	_, err = f.Write(r.conf(host))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
