package spec

import (
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
)

func published(t *testing.T, lines string) (pando.Spec, error) {
	t.Helper()
	text := "name: web\ncommand: [x]\nhealth: {ready: started}\n" + lines
	all, err := Parse("web.yaml", []byte(text), "/srv")
	if err != nil {
		return pando.Spec{}, err
	}
	return all[0], Check(all[0].WithDefaults())
}

func TestPortsOfHosts(t *testing.T) {
	const ports = `ports: ["80:8080", "443:8443", "53:5353/udp"]` + "\n"
	for lines, want := range map[string][]uint16{
		ports + "publish: {host: 443}":                            {0, 443, 0},
		"publish: {host: [80, \"443\", \"53/udp\"]}\n" + ports:    {80, 443, 53},
		ports + "publish: {host: [\"8080:80\", \"1053:53/udp\"]}": {8080, 0, 1053},
		ports + "publish: {host: \"9053/udp\"}":                   {0, 0, 9053}, // the only one of UDP
		"ports: [8080]\npublish:\n  host: 80":                     {80},
	} {
		s, err := published(t, lines)
		if err != nil {
			t.Errorf("%s: %v", lines, err)
			continue
		}
		var got []uint16
		for _, p := range s.Ports {
			got = append(got, p.Host)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: the hosts' ports are %v, want %v", lines, got, want)
		}
		again, err := published(t, strings.Join(strings.SplitAfter(string(Format(s)), "\n")[2:], ""))
		_ = again
		if err == nil && !slices.Equal(again.Ports, s.Ports) {
			t.Errorf("%s: written and read again: %v", lines, again.Ports)
		}
	}
}

func TestPortsOfHostsThatCannotBe(t *testing.T) {
	const ports = `ports: ["80:8080", "443:8443"]` + "\n"
	for lines, want := range map[string]string{
		ports + "publish: {host: 22}":                    "web.yaml:5:",
		ports + "publish: {host: [80, \"8080:80\"]}":     "published at 80 of the hosts already",
		ports + "publish: {host: [\"1:80\", \"1:443\"]}": "port 1/tcp of the hosts is there twice",
		ports + "publish: {host: \"7402:80\"}":           "Pando's own",
		ports + "publish: {host: \"7405:80\"}":           "Pando's own",
		ports + "publish: {host: []}":                    "want a port such as 443",
		ports + "publish: {host: true}":                  "want a port such as 443",
		ports + "publish: {host: 99999}":                 "99999",
		ports + "publish: {host: \"53/udp\"}":            "write HOST:PUBLISHED",
		ports + "publish: true":                          "publish: want a map",
		ports + "publish: {hots: 80}":                    "did you mean `host`?",
		"publish: {host: 80}":                            "the service has no ports",
	} {
		if _, err := published(t, lines); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", lines, err, want)
		}
	}
}
