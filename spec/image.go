package spec

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"pando.run/pando"
)

// Prefixes of images that are files beside the spec.
var imageFiles = []string{"oci:", "docker-archive:"}

const imageWant = "an image such as shop/web:1.2, shop/web@sha256:…, oci:FOLDER or " +
	"docker-archive:FILE.tar"

// imageForm is NAME[:TAG][@DIGEST]. The registry's library checks the parts.
var imageForm = regexp.MustCompile(
	`^[a-zA-Z0-9][a-zA-Z0-9._-]*(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)*` +
		`(:[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127})?` +
		`(@sha256:[0-9a-f]{64})?$`)

var imageKind = textKind(`^\S.*$`, imageWant, stringOnly,
	func(s string) (any, error) { return s, CheckImage(s) })

// CheckImage returns nil if s can name an image, else the reason.
func CheckImage(s string) error {
	for _, prefix := range imageFiles {
		if rest, ok := strings.CutPrefix(s, prefix); ok && rest != "" && !strings.Contains(rest, "\x00") {
			return nil
		}
	}
	if len(s) > 512 || !imageForm.MatchString(s) {
		return fmt.Errorf("%w: image %q: want %s", pando.ErrInvalid, s, imageWant)
	}
	return nil
}

// Beside makes the path in an image's name absolute: it is relative to the spec's folder.
func Beside(dir, image string) string {
	for _, prefix := range imageFiles {
		if rest, ok := strings.CutPrefix(image, prefix); ok && !filepath.IsAbs(rest) {
			return prefix + filepath.Join(dir, rest)
		}
	}
	return image
}

// imageUser is a user of an image: its names are the image's own.
var imageUser = regexp.MustCompile(
	`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\$?(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?$`)

// FromImage returns the spec of a resolved image. The image's configuration fills in what the
// operator's spec leaves open, and Image.Gave lists those words.
func FromImage(s pando.Spec, i pando.Image, c pando.ImageConfig) pando.Spec {
	i.Gave = nil
	gave := func(word string) { i.Gave = append(i.Gave, word) }
	if s.Entrypoint == nil && len(c.Entrypoint) > 0 {
		s.Entrypoint = c.Entrypoint
		gave("entrypoint")
		if s.Command == nil && len(c.Command) > 0 {
			s.Command = c.Command
			gave("command")
		}
	} else if s.Entrypoint == nil && s.Command == nil && len(c.Command) > 0 {
		s.Command = c.Command
		gave("command")
	}
	s.Environment = maps.Clone(s.Environment)
	for _, k := range slices.Sorted(maps.Keys(c.Environment)) {
		if _, ok := s.Environment[k]; ok {
			continue
		}
		if s.Environment == nil {
			s.Environment = map[string]string{}
		}
		s.Environment[k] = c.Environment[k]
		gave(environmentWord + k)
	}
	if s.WorkingDir == "" && c.WorkingDir != "" {
		s.WorkingDir = path.Clean("/" + c.WorkingDir)
		gave("working_dir")
	}
	if s.User == "" && c.User != "" {
		s.User = c.User
		gave("user")
	}
	if sig := signalOf(c.StopSignal); s.StopSignal == "" && sig != "" {
		s.StopSignal = sig
		gave("stop_signal")
	}
	volumesFromImage(&s, c.Volumes, gave)
	if !s.IsJob() { // its exit code counts
		healthFromImage(&s, c.Health, gave)
	}
	portsFromImage(&s, c.Exposed, gave) // no probe asks them: other programs of the image may listen there
	s.Image = i
	return s
}

const environmentWord = "environment."

const (
	portWord = "port "
	// exposedMax bounds the ports that an image gives.
	exposedMax = 64
)

// portsFromImage adds the ports that an image exposes, such as 80/tcp, if the spec wants them.
func portsFromImage(s *pando.Spec, exposed []string, gave func(string)) {
	if !s.Exposed {
		return
	}
	s.Ports = slices.Clip(s.Ports)
	for _, text := range exposed[:min(len(exposed), exposedMax)] {
		number, protocol, _ := strings.Cut(text, "/")
		n, err := parsePort(number)
		p := pando.Port{Published: n, Target: n, Protocol: pando.Protocol(cmp.Or(protocol, "tcp"))}
		has := slices.ContainsFunc(s.Ports, func(o pando.Port) bool {
			return o.Protocol == p.Protocol && (o.Published == n || o.Target == n)
		})
		if err == nil && !has && (p.Protocol == pando.TCP || p.Protocol == pando.UDP) {
			s.Ports = append(s.Ports, p)
			gave(portWord + outsideText(p))
		}
	}
}

func outsideText(p pando.Port) string { return fmt.Sprintf("%d/%s", p.Published, p.Protocol) }

// healthFromImage makes the image's healthcheck the live probe, and the ready probe as well: a
// program in an image does not report that it is ready.
func healthFromImage(s *pando.Spec, h pando.Health, gave func(string)) {
	has := h.Live.Kind != pando.ProbeExplicit
	if has && s.Health.Live.Kind == pando.ProbeExplicit {
		s.Health.Live = h.Live
		gave("health.live")
		if s.Health.IntervalSeconds == 0 && h.IntervalSeconds > 0 {
			s.Health.IntervalSeconds = h.IntervalSeconds
			gave("health.interval")
		}
		if s.Health.TimeoutSeconds == 0 && h.TimeoutSeconds > 0 {
			s.Health.TimeoutSeconds = h.TimeoutSeconds
			gave("health.timeout")
		}
		if s.Health.Fall == 0 && h.Fall > 0 {
			s.Health.Fall = h.Fall
			gave("health.fall")
		}
	}
	if s.Health.Ready.Kind != pando.ProbeExplicit {
		return
	}
	none := s.Health.Startup.Probe.Kind == pando.ProbeExplicit
	if none && h.Startup.Probe.Kind != pando.ProbeExplicit {
		s.Health.Startup = h.Startup
		gave("health.startup")
	}
	tcp := slices.ContainsFunc(s.Ports, func(p pando.Port) bool { return p.Protocol == pando.TCP })
	switch {
	case has:
		s.Health.Ready = h.Live
		gave("health.ready")
	case tcp && s.Ports[0].Protocol == pando.TCP:
		s.Health.Ready = pando.Probe{Kind: pando.ProbeTCP}
		gave("health.ready")
	}
}

// signalOf returns the stop signal of an image in the words of a spec. A check refuses an unknown
// one, as Docker does.
func signalOf(s string) string {
	if name, err := pando.SignalName(s); err == nil {
		return name
	}
	return s
}

// Own returns the spec in the operator's words, without those that its image gave.
func Own(s pando.Spec) pando.Spec {
	if len(s.Image.Gave) == 0 {
		return s
	}
	s.Environment = maps.Clone(s.Environment)
	for _, word := range s.Image.Gave {
		if k, ok := strings.CutPrefix(word, environmentWord); ok {
			delete(s.Environment, k)
		}
		if name, ok := strings.CutPrefix(word, volumeWord); ok {
			s.Volumes = slices.DeleteFunc(slices.Clone(s.Volumes),
				func(v pando.Volume) bool { return v.Name == name })
		}
		if port, ok := strings.CutPrefix(word, portWord); ok {
			s.Ports = slices.DeleteFunc(slices.Clone(s.Ports),
				func(p pando.Port) bool { return outsideText(p) == port })
		}
		switch word {
		case "entrypoint":
			s.Entrypoint = nil
		case "command":
			s.Command = nil
		case "working_dir":
			s.WorkingDir = ""
		case "user":
			s.User = ""
		case "stop_signal":
			s.StopSignal = ""
		case "health.live":
			s.Health.Live = pando.Probe{}
		case "health.startup":
			s.Health.Startup = pando.Startup{}
		case "health.ready":
			s.Health.Ready = pando.Probe{}
		case "health.interval":
			s.Health.IntervalSeconds = 0
		case "health.timeout":
			s.Health.TimeoutSeconds = 0
		case "health.fall":
			s.Health.Fall = 0
		}
	}
	if len(s.Volumes) == 0 {
		s.Volumes = nil
	}
	if len(s.Ports) == 0 {
		s.Ports = nil
	}
	s.Image.Gave = nil
	return s
}
