package spec

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
)

var webImage = pando.ImageConfig{
	Entrypoint: []string{"/start"}, Command: []string{"serve"}, WorkingDir: "srv", User: "www:www",
	Environment: map[string]string{"PATH": "/app", "MODE": "image"}, StopSignal: "QUIT",
	Health: pando.Health{Live: pando.Probe{Kind: pando.ProbeExec, Command: []string{"check"}},
		IntervalSeconds: 5, TimeoutSeconds: 2, Fall: 4},
}

func TestTheSpecWinsOverTheImage(t *testing.T) {
	tcp := []pando.Port{{Published: 80, Target: 8080, Protocol: pando.TCP}}
	probe := pando.Probe{Kind: pando.ProbeHTTP, Path: "/"}
	for name, c := range map[string]struct {
		spec   pando.Spec
		config pando.ImageConfig
		want   func(pando.Spec) bool
		gave   string
	}{
		"all from the image": {pando.Spec{}, webImage, func(s pando.Spec) bool {
			return slices.Equal(s.Argv(), []string{"/start", "serve"}) && s.WorkingDir == "/srv" &&
				s.User == "www:www" && s.StopSignal == "SIGQUIT" && s.Health.Fall == 4 &&
				s.Health.Ready.Kind == pando.ProbeExec
		}, "entrypoint command environment.MODE environment.PATH working_dir user stop_signal " +
			"health.live health.interval health.timeout health.fall health.ready"},
		"a command takes the entrypoint": {pando.Spec{Command: []string{"other"}}, webImage,
			func(s pando.Spec) bool { return slices.Equal(s.Argv(), []string{"/start", "other"}) },
			"entrypoint environment.MODE environment.PATH working_dir user stop_signal " +
				"health.live health.interval health.timeout health.fall health.ready"},
		"an entrypoint drops the command": {pando.Spec{Entrypoint: []string{"sh"}},
			pando.ImageConfig{Entrypoint: []string{"a"}, Command: []string{"b"}},
			func(s pando.Spec) bool { return slices.Equal(s.Argv(), []string{"sh"}) }, ""},
		"an image without an entrypoint": {pando.Spec{Ports: tcp}, pando.ImageConfig{
			Command: []string{"b"}}, func(s pando.Spec) bool {
			return slices.Equal(s.Argv(), []string{"b"}) && s.Health.Ready.Kind == pando.ProbeTCP
		}, "command health.ready"},
		"everything from the spec": {pando.Spec{
			Entrypoint: []string{"x"}, Command: []string{"y"}, User: "1", WorkingDir: "/w",
			StopSignal: "SIGINT", Environment: map[string]string{"MODE": "spec", "PATH": "/bin"},
			Health: pando.Health{Ready: probe, Live: probe}}, webImage, func(s pando.Spec) bool {
			return s.Environment["MODE"] == "spec" && s.User == "1" && s.Health.Fall == 0 &&
				s.StopSignal == "SIGINT" && s.WorkingDir == "/w" && s.Health.Live.Path == "/"
		}, ""},
		"a signal by number": {pando.Spec{}, pando.ImageConfig{StopSignal: "3"},
			func(s pando.Spec) bool { return s.StopSignal == "SIGQUIT" }, "stop_signal"},
		"a real-time signal": {pando.Spec{}, pando.ImageConfig{StopSignal: "37"},
			func(s pando.Spec) bool { return s.StopSignal == "SIGRTMIN+3" && Check(named(s)) == nil },
			"stop_signal"},
		"a signal in lower case": {pando.Spec{}, pando.ImageConfig{StopSignal: "term"},
			func(s pando.Spec) bool { return s.StopSignal == "SIGTERM" }, "stop_signal"},
		"a signal that is none": {pando.Spec{}, pando.ImageConfig{StopSignal: "99"},
			func(s pando.Spec) bool {
				return strings.Contains(fmt.Sprint(Check(named(s))), `stop_signal: "99"`)
			}, "stop_signal"},
	} {
		s := FromImage(c.spec, pando.Image{Reference: "web", Digest: "sha256:0"}, c.config)
		if !c.want(s) {
			t.Errorf("%s: %+v", name, s)
		}
		if got := strings.Join(s.Image.Gave, " "); got != c.gave {
			t.Errorf("%s: the image gave %q, want %q", name, got, c.gave)
		}
		// The operator's words come back, and the same image makes the same spec again.
		own := Own(s)
		s = s.WithDefaults()
		if again := FromImage(own, s.Image, c.config).WithDefaults(); !reflect.DeepEqual(again, s) {
			t.Errorf("%s: a second deploy makes another spec:\n%+v\n%+v", name, again, s)
		}
	}
}

// keeping returns the configuration of an image with volumes.
func keeping(paths ...string) pando.ImageConfig { return pando.ImageConfig{Volumes: paths} }

// One instance has the volumes of its image, and the operator's words come back.
func TestOneInstanceHasTheVolumesOfItsImage(t *testing.T) {
	for name, c := range map[string]struct {
		spec   pando.Spec
		config pando.ImageConfig
		want   func(pando.Spec) bool
		gave   string
	}{
		"a volume of the image": {pando.Spec{}, keeping("/var/lib/mysql", "/etc", "/proc/x"),
			func(s pando.Spec) bool {
				return slices.Equal(s.Volumes, []pando.Volume{{Name: "image-var-lib-mysql",
					Path: "/var/lib/mysql"}})
			}, "volumes.image-var-lib-mysql"},
		"a volume of the spec in its place": {pando.Spec{Volumes: []pando.Volume{{Name: "d",
			Path: "/var/lib"}}}, keeping("/var/lib/mysql"),
			func(s pando.Spec) bool { return len(s.Volumes) == 1 }, ""},
		"a folder in memory in its place": {pando.Spec{Tmpfs: []pando.Tmpfs{{Path: "/data"}}},
			keeping("/data"), func(s pando.Spec) bool { return s.Volumes == nil }, ""},
		"several copies keep no volume": {pando.Spec{Scale: pando.Scale{Max: 3}}, keeping("/data"),
			func(s pando.Spec) bool { return s.Volumes == nil }, ""},
		"a job keeps no volume": {pando.Spec{Kind: pando.KindJob}, keeping("/data"),
			func(s pando.Spec) bool { return s.Volumes == nil }, ""},
	} {
		s := FromImage(c.spec, pando.Image{Reference: "web", Digest: "sha256:0"}, c.config)
		if got := strings.Join(s.Image.Gave, " "); !c.want(s) || got != c.gave {
			t.Errorf("%s: %+v by %q, want %q", name, s.Volumes, got, c.gave)
		}
		if own := Own(s); !reflect.DeepEqual(own.Volumes, c.spec.Volumes) {
			t.Errorf("%s: the operator's volumes come back as %+v", name, own.Volumes)
		}
	}
}

// A deploy says what will be lost, and only that.
func TestTheVolumesOfAnImageThatAreLostAreNamed(t *testing.T) {
	c := keeping("/data/", "/var/www")
	for name, lost := range map[string]struct {
		spec pando.Spec
		want string
	}{
		"one instance":   {pando.Spec{}, ""},
		"a job":          {pando.Spec{Kind: pando.KindJob, Scale: pando.Scale{Max: 3}}, ""},
		"several copies": {pando.Spec{Scale: pando.Scale{Max: 3}}, "keeps /data, /var/www as a volume"},
		"one is mounted": {pando.Spec{Scale: pando.Scale{Max: 3},
			Volumes: []pando.Volume{{Name: "d", Path: "/data", Shared: true}}},
			"keeps /var/www as a volume"},
	} {
		got := LostVolumes(FromImage(lost.spec, pando.Image{}, c), c)
		if !strings.Contains(got, lost.want) || (got == "") != (lost.want == "") {
			t.Errorf("%s: %q, want %q", name, got, lost.want)
		}
	}
	long := imageVolumeName("/opt/" + strings.Repeat("Very Long/", 20))
	if !volumeName.MatchString(long) || !volumeName.MatchString(imageVolumeName("/a/_")) {
		t.Errorf("the name %q is none", long)
	}
}

func TestFormatPrintsTheOperatorsWords(t *testing.T) {
	s := pando.Spec{Name: "web", Image: pando.Image{Reference: "shop/web:1"},
		Environment: map[string]string{"A": "b"}}
	full := FromImage(s, pando.Image{Reference: "shop/web:1", Digest: "sha256:0"}, webImage)
	got, want := string(Format(full.WithDefaults())), string(Format(s.WithDefaults()))
	if got != want {
		t.Errorf("a spec with an image prints as\n%s\nwant\n%s", got, want)
	}
	if s.Environment["PATH"] != "" || len(full.Environment) != 3 {
		t.Errorf("the operator's map changed: %v, %v", s.Environment, full.Environment)
	}
}

func TestImagesInASpec(t *testing.T) {
	for text, want := range map[string]string{
		"image: nginx": "nginx", "image: localhost:5000/a/b:v1": "localhost:5000/a/b:v1",
		"image: oci:out:v1": "oci:/d/out:v1", "image: docker-archive:/x/a.tar": "docker-archive:/x/a.tar",
		"image: a@sha256:" + strings.Repeat("0", 64): "a@sha256:" + strings.Repeat("0", 64),
	} {
		specs, err := Parse("a.yaml", []byte("name: w\n"+text+"\n"), "/d")
		if err != nil || specs[0].Image.Reference != want || specs[0].WorkingDir != "" {
			t.Errorf("%q: %+v %v", text, specs, err)
		}
	}
	for text, want := range map[string]string{
		"image: ../a":                    "a.yaml:2:8: image: ",
		"image: 'a b'":                   "a.yaml:2:8: image: ",
		"image: 'oci:'":                  "a.yaml:2:8: image: ",
		"image: A/B":                     "a.yaml:2:8: image: ",
		"image: a\nworking_dir: x":       "a.yaml:3:1: working_dir: is a folder of the image",
		"command: a\nentrypoint: b":      "a.yaml:3:1: entrypoint: stands before the command",
		"image: a\nuser: 'a b'":          "a.yaml:3:7: user: ",
		"image: a@sha256:00":             "a.yaml:2:8: image: ",
		"user: root":                     "a.yaml:1:1: command: is missing",
		"image: a\ncommand: x\nbuild: .": "unknown key: build it before the deploy",
	} {
		_, err := Parse("a.yaml", []byte("name: w\n"+text+"\n"), "/d")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// named returns a spec that is complete but for its image's words.
func named(s pando.Spec) pando.Spec {
	s.Name, s.Command, s.Image.Reference = "web", []string{"x"}, "web"
	return s.WithDefaults()
}

// Ports that the image exposes are ports of a spec that wants them, in addition to its own. No probe
// comes with them, and the operator's own spec has none of them.
func TestExposedPortsAreThoseOfTheImage(t *testing.T) {
	exposed := pando.ImageConfig{Command: []string{"/run"}, Exposed: []string{"53/udp", "80/tcp", "8080",
		"9/sctp", "x/tcp"}}
	web := pando.Port{Published: 81, Target: 80, Protocol: pando.TCP}
	for want, s := range map[string]pando.Spec{
		"[]":                                  {Name: "web"},
		"[53:53/udp 80:80/tcp 8080:8080/tcp]": {Name: "web", Exposed: true},
		"[81:80/tcp 53:53/udp 8080:8080/tcp]": {Name: "web", Exposed: true, Ports: []pando.Port{web}},
	} {
		s.Image.Reference = "web:1"
		s.Health.Ready = pando.Probe{Kind: pando.ProbeStarted}
		got := FromImage(s, s.Image, exposed)
		if text := fmt.Sprint(portTexts(got.Ports)); text != want || !reflect.DeepEqual(got.Health, s.Health) {
			t.Errorf("the ports are %s, want %s; the probes are %+v", text, want, got.Health)
		}
		own := Own(got)
		if own.Command = nil; !reflect.DeepEqual(own.Ports, s.Ports) || own.Exposed != s.Exposed {
			t.Errorf("the operator's ports are %v, want %v", own.Ports, s.Ports)
		}
	}
}
