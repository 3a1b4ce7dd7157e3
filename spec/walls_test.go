package spec

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"pando.run/pando"
)

func TestWallsOfASpec(t *testing.T) {
	for text, want := range map[string]string{
		"bundle: /":                            "a folder at the top",
		"bundle: /srv":                         "a folder at the top",
		"bundle: /usr/local/site":              "instances see /usr as each host has it",
		"bundle: /var/www/site":                "move the folder",
		"bundle: [a]":                          "want a directory",
		"bundle: .\nimage: web:1":              "an image has its own files",
		"folders: []":                          "folders: want a list",
		"folders: /srv":                        "folders: want a list",
		"folders: [/srv:srv]":                  "PATH_IN_THE_INSTANCE",
		"folders: [/srv:/a:/b]":                "PATH_IN_THE_INSTANCE",
		"folders: [/srv:/proc/x]":              "the instance's own",
		"folders: [/srv:/x, /opt/a:/x]":        "is mounted already, by folders[0]",
		"folders: [\":rw\"]":                   "want PATH",
		"folders: [/]":                         "want the folders below /",
		"folders: [/proc/sys]":                 "the instance's own",
		"folders: [/run/secrets]":              "the instance's own",
		"folders: [{a: b}]":                    "want a text",
		"secrets: a":                           "want a list of names",
		"secrets: [a, a]":                      "a is there twice",
		"secrets: [../x]":                      "want a name of letters",
		"secrets: {a: {on_change: HOP}}":       "want a signal",
		"secrets: {a: {mode: 400}}":            "want on_change alone",
		"secrets: {\"../x\": /etc/x}":          "is no name of a file",
		"secrets: {x: }":                       "a file of the host",
		"reach: [moon]":                        "want some of internet",
		"reach: []":                            "want a list",
		"security_opt: [apparmor=unconfined]":  "want seccomp=unconfined",
		"security_opt: [no-new-privileges:no]": "want seccomp=unconfined",
		"privileged: true":                     "instances have no privileges",
		"userns_mode: private":                 "host",
		"volumes: [/a:/b]":                     "in `folders`",
	} {
		_, err := Parse("a.yaml", []byte(minimal+text), "/d")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func TestChecksOfWallsThatComeFromAProgram(t *testing.T) {
	good := wholeSpec()
	for name, spoil := range map[string]func(*pando.Spec){
		"a relative folder":  func(s *pando.Spec) { s.Folders = []pando.Folder{{Path: "x"}} },
		"a folder with dots": func(s *pando.Spec) { s.Folders = []pando.Folder{{Path: "/srv/../etc"}} },
		"a bundle's folder":  func(s *pando.Spec) { s.Bundle.Folder = "a/b" },
		"a bundle's path":    func(s *pando.Spec) { s.Bundle.Folder = "/srv/a/../b" },
		"a bundle of none":   func(s *pando.Spec) { s.Bundle.Digest = "sha256:1" },
		"a NUL":              func(s *pando.Spec) { s.Folders = []pando.Folder{{Path: "/srv/\x00"}} },
		"many folders":       func(s *pando.Spec) { s.Folders = make([]pando.Folder, foldersMax+1) },
		"a secret's name":    func(s *pando.Spec) { s.Secrets = map[string]string{"a/b": "/x"} },
		"a secret's file":    func(s *pando.Spec) { s.Secrets = map[string]string{"a": "x"} },
		"a reach":            func(s *pando.Spec) { s.Reach = []pando.Reach{"all"} },
		"an option":          func(s *pando.Spec) { s.SecurityOpt = []string{"label=disable"} },
	} {
		bad := good
		spoil(&bad)
		if err := Check(bad); !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestReachOfASpec(t *testing.T) {
	for _, c := range []struct {
		words []pando.Reach
		want  []pando.Reach
	}{
		{nil, []pando.Reach{pando.ReachInternet, pando.ReachTenant}},
		{[]pando.Reach{pando.ReachTenant}, []pando.Reach{pando.ReachTenant}},
		{[]pando.Reach{pando.ReachHost}, []pando.Reach{pando.ReachTenant, pando.ReachHost}},
		{pando.Reachables, pando.Reachables},
	} {
		var got []pando.Reach
		for _, r := range pando.Reachables {
			if (pando.Spec{Reach: c.words}).Reaches(r) {
				got = append(got, r)
			}
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("reach %v: reaches %v, want %v", c.words, got, c.want)
		}
	}
}

func TestABundleIsRelativeToTheFileAndTheWorkingDirectory(t *testing.T) {
	for text, want := range map[string][2]string{
		"bundle: .":                     {"/d/e", "/d/e"},
		"bundle: ./dist":                {"/d/e/dist", "/d/e/dist"},
		"bundle: /srv/x/":               {"/srv/x", "/srv/x"},
		"bundle: dist\nworking_dir: a":  {"/d/e/dist", "/d/e/a"},
		"bundle: .\nworking_dir: /tmp/": {"/d/e", "/tmp/"},
	} {
		all, err := Parse("a.yaml", []byte(minimal+text), "/d/e")
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		s := all[0]
		if got := [2]string{s.Bundle.Folder, s.WorkingDir}; got != want {
			t.Errorf("%s: bundle and working directory %v, want %v", text, got, want)
		}
		if err := Check(s.WithDefaults()); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		s.Bundle.Digest, s.Bundle.Host = "sha256:1", "host1"
		again, err := Parse("b.yaml", Format(s), "/other")
		if err != nil || again[0].Bundle.Folder != want[0] {
			t.Errorf("%s: its text means %+v, %v", text, again, err)
		}
	}
}
