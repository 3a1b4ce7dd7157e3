package spec

import (
	"net/url"
	"strings"

	"pando.run/pando"
)

func (c *checks) health(h pando.Health, published bool) {
	for _, p := range h.Probes() {
		where := p.Key
		word(c, where+".kind", p.Kind, pando.ProbeExplicit, pando.ProbeTCP, pando.ProbeHTTP,
			pando.ProbeGRPC, pando.ProbeExec, pando.ProbeUDP, pando.ProbePing, pando.ProbeStarted,
			pando.ProbeReported)
		c.that(p.Kind != pando.ProbeExec || len(p.Command) > 0, "%s: exec needs a command", where)
		c.that(p.Kind != pando.ProbeHTTP || isProbePath(p.Path),
			"%s: path %q: want one that begins with /, without spaces", where, p.Path)
		c.that(p.Kind == pando.ProbeHTTP || !p.TLS && len(p.Headers) == 0,
			"%s: TLS and headers are for http", where)
		c.that(len(p.Headers) <= headersMax, "%s: %d headers: at most %d", where, len(p.Headers), headersMax)
		for _, h := range p.Headers {
			c.also(checkHeader(h))
		}
		c.that(published || p.Port > 0 || p.Dials() == "",
			"%s: names no port, and the service publishes none", where)
	}
	for _, why := range healthConflicts(h) {
		c.that(false, "%s: %s", why.path, why.text)
	}
	c.seconds("health.startup.interval_seconds", h.Startup.IntervalSeconds)
	c.seconds("health.startup.timeout_seconds", h.Startup.TimeoutSeconds)
	c.seconds("health.startup.seconds_max", h.Startup.SecondsMax)
	c.seconds("health.ready_seconds_max", h.ReadySecondsMax)
	c.seconds("health.interval_seconds", h.IntervalSeconds)
	c.seconds("health.timeout_seconds", h.TimeoutSeconds)
	c.that(h.Fall >= 0, "health.fall: %d: want a number from 0 on", h.Fall)
}

// isProbePath reports whether a probe can ask for a path. It stands behind the address of the
// instance, so nothing before its slash may become another address.
func isProbePath(s string) bool {
	if !strings.HasPrefix(s, "/") || strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r == 0x7f
	}) {
		return false
	}
	_, err := url.Parse("http://instance" + s)
	return err == nil
}

// healthConflicts returns the keys of a health that contradict each other.
func healthConflicts(h pando.Health) (out []conflict) {
	add := func(is bool, path, text string) {
		if is {
			out = append(out, conflict{path, text})
		}
	}
	for _, p := range h.Probes() {
		add(p.Kind == pando.ProbeStarted && p.Key != "health.ready", p.Key,
			"started is a probe of health.ready: leave this one out")
		add(p.Kind == pando.ProbeReported && p.Key != "health.startup.probe", p.Key,
			"reported is a probe of health.startup: without health.ready, the program reports that it "+
				"is ready")
	}
	up := h.Startup
	add(up.Probe.Kind == pando.ProbeReported && h.Ready.Kind == pando.ProbeExplicit,
		"health.startup.probe", "the one report of the program is for health.ready: give that a probe, "+
			"such as tcp 7000, or leave this one out")
	const alone = "has no effect without a probe, such as startup: {probe: exec ./migrated}"
	none := up.Probe.Kind == pando.ProbeExplicit
	add(none && up.IntervalSeconds != 0, "health.startup.interval", alone)
	add(none && up.TimeoutSeconds != 0, "health.startup.timeout", alone)
	add(none && up.SecondsMax != 0, "health.startup.within", alone)
	return out
}
