package spec

import (
	"strings"
	"testing"

	"pando.run/pando"
)

// The words for the resolver are checked, in a file and in a spec that comes from a program.
func TestWordsForTheResolverAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		"dns: [192.0.2.53, 192.168.1.1, '2001:db8::53']\ndns_search: [corp.example]\ndns_opt: ['ndots:2', rotate]": "",
		"dns_search: ['.']":                  "",
		"dns: [127.0.0.1]":                   "want a resolver beyond the hosts",
		"dns: [10.127.0.7]":                  "want a resolver beyond the hosts",
		"dns: [10.128.0.7]":                  "want a resolver beyond the hosts",
		"dns: [169.254.169.254]":             "want a resolver beyond the hosts",
		"dns: [224.0.0.251]":                 "want a resolver beyond the hosts",
		"dns: ['fe80::1%eth0']":              "want an address",
		"dns: ['fd70:616e:646f:ffff::7']":    "want a resolver beyond the hosts",
		"dns: ['fd70:616e:646f:1::7']":       "want a resolver beyond the hosts",
		"dns: ['::ffff:10.127.0.7']":         "want a resolver beyond the hosts",
		"dns: [resolver]":                    "want an address",
		"dns: 192.0.2.53":                    "want a list",
		"dns: [192.0.2.53]\nreach: [tenant]": "`reach` has no internet",
		"dns: [1.1.1.1,1.1.1.2,1.1.1.3,1.1.1.4,1.1.1.5,1.1.1.6,1.1.1.7,1.1.1.8,1.1.1.9]": "at most 8",
		"dns_search: [\"a b\"]":                      "want a domain",
		"dns_search: [\"a\\nnameserver 192.0.2.1\"]": "want a domain",
		"dns_opt: [\"x\\nnameserver 192.0.2.1\"]":    "want an option",
		"umask: '0027'":                              "", "umask: 0o27": "octal digits", "umask: 9": "octal digits",
		"umask: '01777'": "octal digits", "resources: {cpuset: '0-3,7'}": "", "resources: {cpuset: 1}": "",
		"resources: {cpuset: all}": "numbers of processors", "resources: {cpuset: '1-'}": "numbers of processors",
		"cpuset: '0'": "resources.cpuset",
	} {
		s, err := Parse("x.yaml", []byte("name: x\nimage: x\n"+text+"\n"), t.TempDir())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, %v, want %q", text, s, err, want)
		}
	}
	for name, spoil := range map[string]func(*pando.Spec){
		"a resolver": func(s *pando.Spec) { s.DNS = []string{"127.0.0.1"} },
		"a domain":   func(s *pando.Spec) { s.DNSSearch = []string{"a\nb"} },
		"an option":  func(s *pando.Spec) { s.DNSOptions = []string{"a b"} },
		"a umask":    func(s *pando.Spec) { s.Umask = "8" },
		"a cpuset":   func(s *pando.Spec) { s.Resources.CPUSet = "0\n" },
	} {
		bad := wholeSpec()
		if spoil(&bad); Check(bad) == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
