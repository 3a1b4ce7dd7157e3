package spec

import (
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pando.run/pando"
)

func TestVolumesOfASpec(t *testing.T) {
	for text, want := range map[string]string{
		"volumes: []":                                         "volumes: want a list",
		"volumes: [/srv:/srv]":                                "name it in `folders`",
		"volumes: [./data:/srv]":                              "name it in `folders`",
		"volumes: [data]":                                     "want NAME:PATH",
		"volumes: [\"data:\"]":                                "want NAME:PATH",
		"volumes: [\"Data:/d\"]":                              "want a name of letters in lower case",
		"volumes: [\"data:d\"]":                               "is no absolute path",
		"volumes: [\"data:/a/../d\"]":                         "is no absolute path",
		"volumes: [\"data:/proc/x\"]":                         "the instance's own",
		"volumes: [\"data:/run\"]":                            "the instance's own",
		"volumes: [\"data:/etc\"]":                            "want the folder below",
		"volumes: [\"data:/d:rx\"]":                           "want ro, rw, shared, size=10g or of=SERVICE",
		"volumes: [\"data:/d:size=0\"]":                       "want a size such as 512k",
		"volumes: [\"data:/d:size=1t\"]":                      "want a size such as 512k",
		"volumes: [\"data:/d:size=2000000g\"]":                "the size is impossible",
		"volumes: [\"a:/d:size=1g\", \"a:/e\"]":               "volume a has two sizes",
		"volumes: [\"a:/d\", \"b:/d\"]":                       "mounted already, by volumes[0]",
		"volumes: [\"a:/d\", \"a:/e:shared\"]":                "shared in one place alone",
		"volumes: [\"a:/d\"]\ntmpfs: [/d]":                    "mounted already, by volumes[0]",
		"volumes: [\"a:/d\"]\nrollout: {order: start-first}":  "two instances cannot have one volume",
		"volumes: [\"a:/d\"]\nplace: {spread: host}":          "are on one host",
		"volumes: [\"a:/d\"]\nscale: {warm: 1, max: 3}":       "an instance in reserve",
		"volumes: [\"a:/d\"]\nstate: {copies: 2, n: counter}": "a volume stays on its host",
		"tmpfs: [\"/d:size=x\"]":                              "want a size",
		"tmpfs: [\"/d:size=0\"]":                              "want a size",
		"tmpfs: [\"/d:size=99999999999999g\"]":                "want a size",
		"tmpfs: [\"/d:mode=9\"]":                              "option \"mode=9\"",
		"tmpfs: [\"/d:uid=0\"]":                               "want size, mode and noexec",
		"read_only: \"yes\"":                                  "want true or false",
	} {
		_, err := Parse("a.yaml", []byte(minimal+text), "/d")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func TestVolumesAreReadAsWritten(t *testing.T) {
	all, err := Parse("a.yaml", []byte(minimal+
		"volumes: [\"data:/d:size=20g\", \"media:/m:ro,shared\"]\ntmpfs: [\"/c:size=16m,mode=700,noexec\", /e]\n"+
		"read_only: true\n"), "/d")
	if err != nil {
		t.Fatal(err)
	}
	s := all[0].WithDefaults()
	volumes := []pando.Volume{{Name: "data", Path: "/d", Bytes: 20 << 30},
		{Name: "media", Path: "/m", Shared: true, ReadOnly: true}}
	if !reflect.DeepEqual(s.Volumes, volumes) {
		t.Errorf("volumes %+v, want %+v", s.Volumes, volumes)
	}
	want := []pando.Tmpfs{{Path: "/c", Bytes: 16 << 20, Mode: 0o700, NoExec: true}, {Path: "/e"}}
	if !reflect.DeepEqual(s.Tmpfs, want) || !s.ReadOnly {
		t.Errorf("tmpfs %+v, read_only %v, want %+v", s.Tmpfs, s.ReadOnly, want)
	}
	if s.Rollout.Order != pando.StopFirst {
		t.Errorf("an instance's own volume rolls out %s", s.Rollout.Order)
	}
	back, err := Parse("b.yaml", Format(s), "/d")
	if err != nil || !reflect.DeepEqual(back[0].WithDefaults(), s) {
		t.Errorf("from its own text it is %+v (%v), want %+v", back, err, s)
	}
}

// Services that share every volume keep two revisions beside each other.
func TestSharedVolumesKeepTheRollout(t *testing.T) {
	s := pando.Spec{Volumes: []pando.Volume{{Name: "a", Path: "/a", Shared: true}}}
	if got := s.WithDefaults().Rollout.Order; got != pando.StartFirst {
		t.Errorf("a shared volume rolls out %s", got)
	}
}

func TestVolumeTextsAreReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := pando.Volume{
			Name:     rapid.StringMatching(`[a-z0-9]([a-z0-9_.-]{0,10}[a-z0-9])?`).Draw(t, "name"),
			Path:     rapid.StringMatching(`(/[a-z]{1,5}){1,4}`).Draw(t, "path"),
			Shared:   rapid.Bool().Draw(t, "shared"),
			ReadOnly: rapid.Bool().Draw(t, "read only"),
		}
		if got, err := parseVolume(volumeTexts([]pando.Volume{v})[0]); err != nil || got != v {
			t.Fatalf("%+v is read as %+v: %v", v, got, err)
		}
		m := pando.Tmpfs{
			Path:  v.Path,
			Bytes: rapid.Int64Range(0, 1<<38).Draw(t, "bytes"),
			Mode:  rapid.Uint32Range(0, 0o7777).Draw(t, "mode"),

			NoExec: rapid.Bool().Draw(t, "noexec"),
		}
		if got, err := parseTmpfs(tmpfsTexts([]pando.Tmpfs{m})[0]); err != nil || got != m {
			t.Fatalf("%+v is read as %+v: %v", m, got, err)
		}
	})
}
