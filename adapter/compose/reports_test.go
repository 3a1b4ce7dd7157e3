package compose

import (
	"fmt"
	"strings"
	"testing"

	"pando.run/pando/spec"
)

// Words of public files and of reports about other converters are taken, or refused at their place
// with a cure.
func TestWordsOfPublicReports(t *testing.T) {
	for text, want := range map[string]string{
		// Absolute paths with a slash at their end (containerd/nerdctl#542).
		"volumes: ['/srv/mail/:/var/spool/postfix/']": "/srv/mail:/var/spool/postfix:rw",
		"tmpfs: ['/run:size=16M', '/x:size=1G']":      "/run:size=16777216",
		// A protocol at the port of the host (kubernetes/kompose#633).
		"ports: ['80:80', '514/udp:514/udp']": "c.yaml:2:34: services.a.ports: invalid hostPort: 514/udp",
		// The shared memory of the host, in place of shm_size.
		"volumes: ['/dev/shm:/dev/shm']":           "`shm_size` sets its size",
		"volumes: ['data:/dev/shm']":               "services.a.volumes: /dev/shm: it is the instance's own memory",
		"volumes: ['/dev/ttyUSB0:/dev/ttyUSB0']":   "name a device in `devices`: [/dev/ttyUSB0]",
		"volumes: ['/proc:/host/proc:ro']":         "services.a.volumes: /proc: it shows the programs",
		"volumes: ['/:/rootfs:ro']":                "services.a.volumes: /: it shows the programs",
		"volumes: ['/srv:/run/secrets/x']":         "/run/secrets is the instance's own",
		"secrets: [token]":                         "`pando secret set token`",
		"pid: host":                                "services.a.pid", // containers/podman-compose#554
		"ulimits: {memlock: {soft: -1, hard: -1}}": `memlock: "-1:-1"`,
	} {
		file := fmt.Sprintf("services:\n  a: {image: x, %s\n  }\nvolumes: {data: {}}\n"+
			"secrets: {token: {environment: T}}\n", text)
		r, err := parse(t, file, Options{Project: "p"})
		got := fmt.Sprint(err, r.Warnings)
		for _, s := range r.Specs {
			got += string(spec.Format(s))
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: want %q in:\n%s", text, want, got)
		}
	}
}

// A variable in a comment is none of the file.
func TestAVariableInACommentIsNotUnset(t *testing.T) {
	for text, want := range map[string]int{
		"[sh, -c] # as $A says\n": 0, "[sh, $$A] # $$A and ${A}\n": 0, "[\"# $A\"]\n": 1, "['a#b', $A] # $B\n": 1,
		"|\n      # $A\n      x\n": 1, "# $A\n      [x]\n": 0,
	} {
		r, err := parse(t, "services:\n  a:\n    image: x\n    command: "+text, Options{Project: "p"})
		if err != nil || len(r.Warnings) != want {
			t.Errorf("%q: %v, %v, want %d warnings", text, err, r.Warnings, want)
		}
	}
}

// A name may be longer than one of Pando (itzg/docker-minecraft-server has one of 66 letters). A
// name of at most 63 letters, the limit of a host name, also becomes an alias.
func TestALongNameOfAServiceIsShortened(t *testing.T) {
	long, longer := strings.Repeat("a_service_", 6), strings.Repeat("b_service_", 7)
	r, err := parse(t, "services:\n  "+long+": {image: x}\n  "+longer+": {image: x}\n", Options{Project: "p"})
	if err != nil || len(r.Specs) != 2 {
		t.Fatal(r.Specs, err)
	}
	for n, want := range []string{"[" + long + "]", "[]"} {
		s := r.Specs[n]
		if len(s.Name) > nameBytesMax || fmt.Sprint(s.Aliases) != want {
			t.Errorf("%s has the aliases %v, want %s", s.Name, s.Aliases, want)
		}
	}
	if r.Warnings == nil || !strings.Contains(r.Warnings.Error(), "services."+longer+": "+longer+" is left out") {
		t.Errorf("the warnings are %v", r.Warnings)
	}
}
