package spec

import (
	"errors"
	"fmt"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"pando.run/pando"
)

// Bounds of a spec.
const (
	InstancesMax = pando.EndpointsMax              // of one service
	SecondsMax   = float64(365*24*time.Hour) / 1e9 // of any wait in a spec
	UIDMax       = math.MaxUint32 - 1              // chown reads the last id as "leave it"
	textBytesMax = 128 << 10                       // one argument or variable: the kernel's limit
)

var (
	user = regexp.MustCompile(`^([a-z_][a-z0-9_-]{0,31}|[0-9]+(:[0-9]+)?)$`)
)

// CheckUser returns nil if s can be the user of a program, else the reason.
func CheckUser(s string) error {
	if !user.MatchString(s) {
		return fmt.Errorf("%w: user %q: want a user such as www-data, 1000 or 1000:1000",
			pando.ErrInvalid, s)
	}
	for id := range strings.SplitSeq(s, ":") {
		if id[0] > '9' {
			continue
		}
		if n, err := strconv.ParseUint(id, 10, 32); err != nil || n > UIDMax {
			return fmt.Errorf("%w: user %q: %s is more than the largest id, %d",
				pando.ErrInvalid, s, id, uint32(UIDMax))
		}
	}
	return nil
}

// Check returns every error in a spec that would stop it on every host, or nil. It serves specs
// that come from a program. Package spec checks a file and names the place of each error.
func Check(s pando.Spec) error {
	c := &checks{}
	c.also(pando.CheckLabel("service", string(s.Name)))
	if s.Tenant != "" {
		c.also(pando.CheckLabel("tenant", string(s.Tenant)))
	}
	c.argv(s)
	for k, v := range s.Environment {
		c.that(k != "" && !strings.Contains(k, "="), "environment: %q is no name of a variable", k)
		c.text("environment."+k, k+v)
	}
	c.that(s.WorkingDir == "" || path.IsAbs(s.WorkingDir),
		"working_dir: %q is not an absolute path", s.WorkingDir)
	c.text("working_dir", s.WorkingDir)
	switch {
	case s.Image.Reference != "":
		c.also(CheckImage(s.Image.Reference))
		c.that(s.User == "" || imageUser.MatchString(s.User),
			"user: %q: want a user of the image, such as www-data, 1000 or 1000:1000", s.User)
	case s.User != "":
		c.also(CheckUser(s.User))
	}
	c.signal("stop_signal", s.StopSignal)
	c.seconds("stop_seconds", s.StopSeconds)
	c.aliases(s)
	c.drain(s.DrainSecondsMax)
	word(c, "restart", s.Restart, "", pando.RestartAlways, pando.RestartOnFailure, pando.RestartNo)
	c.job(s)
	c.ports(s.Ports)
	for _, e := range s.Endpoints {
		c.also(e.Check())
	}
	c.forms(s)
	c.health(s.Health, len(s.Ports) > 0)
	c.scale(s.Scale, len(s.Ports) > 0)
	for p, t := range s.State {
		c.that(p != "" && !strings.HasPrefix(p, "/") && path.Clean(p) == p && !strings.HasPrefix(p, ".."),
			"state: %q: want a relative path", p)
		word(c, "state."+p, t, pando.StateCounter, pando.StateSet, pando.StateLog, pando.StateLast,
			pando.StateOpaque)
	}
	c.that(s.StateCopies >= 0 && s.StateCopies <= pando.CopiesMax,
		"state.copies: %d: want 1 to %d", s.StateCopies, pando.CopiesMax)
	c.that(s.StateCopies == 0 || len(s.State) > 0,
		"state.copies: the service has no state: name its paths, such as hits: counter")
	c.that(s.StateCopies < 2 || len(s.Volumes) == 0,
		"state.copies: a volume stays on its host: drop `copies` or the volumes")
	c.walls(s)
	c.number("resources.cpus", s.Resources.CPUs)
	c.that(s.Resources.MemoryBytes >= 0 && s.Resources.PIDs >= 0, "resources: a limit is below 0")
	c.that(s.Rollout.Surge >= 0 && s.Rollout.Surge <= InstancesMax,
		"rollout.surge: %d: want 0 to %d", s.Rollout.Surge, InstancesMax)
	c.seconds("rollout.healthy_seconds", s.Rollout.HealthySeconds)
	c.canary(s)
	word(c, "rollout.order", s.Rollout.Order, "", pando.StartFirst, pando.StopFirst)
	c.that(s.Scale.Warm == 0 || !s.Single(), "scale.warm: %d: a reserve runs beside the instance, "+
		"and scale.max 1 with rollout.order stop-first allows one", s.Scale.Warm)
	c.place(s)
	c.replicate(s)
	c.stateful(s)
	c.needs(s)
	word(c, "balance.by", s.Balance.By, append(slices.Clone(pando.BalanceKinds), "")...)
	word(c, "balance.at", s.Balance.At, append(slices.Clone(pando.BalancePlaces), "")...)
	c.also(s.Balance.Check())
	return errors.Join(c.errs...)
}

// forms checks the words that depend on the form of the service.
func (c *checks) forms(s pando.Spec) {
	placed := s
	placed.WorkingDir = "" // a loader makes it absolute, also where it has no effect
	for _, why := range slices.Concat(externalConflicts(s), hostPortConflicts(s),
		grantConflicts(s), vmConflicts(s), formConflicts(placed), aloneConflicts(s)) {
		c.that(false, "%s: %s", why.path, why.text)
	}
}

// place checks the rule of placement.
func (c *checks) place(s pando.Spec) {
	p := s.Place
	if p.Spread != "" {
		c.also(pando.CheckLabel("place.spread: label", p.Spread))
	}
	word(c, "place.near", p.Near, "", pando.NearFirst)
	if p.Only != "" {
		_, _, err := pando.CutLabel(p.Only)
		c.also(err)
	}
	if p.Apart != "" {
		c.also(pando.CheckLabel("place.apart: service", string(p.Apart)))
	}
	for _, why := range placeConflicts(s) {
		c.that(false, "%s: %s", why.path, why.text)
	}
}

// conflict is a key of a spec that contradicts another one.
type conflict struct{ path, text string }

// placeConflicts returns the keys of `place` that contradict each other or the rest of the spec.
func placeConflicts(s pando.Spec) (out []conflict) {
	if s.Place.Spread != "" && s.Place.Near != "" {
		out = append(out, conflict{"place.near", "contradicts spread: drop one of them"})
	}
	if s.Place.Spread != "" && len(s.State) > 0 && s.StateCopies < 2 {
		out = append(out, conflict{"place.spread", "the service has a state, which is on one host: " +
			"add `copies: 2` to state, or drop spread or state"})
	}
	if s.Place.Apart != "" && s.Place.Apart == s.Name {
		out = append(out, conflict{"place.apart", "names the service itself: use spread: host"})
	}
	return out
}

// argv checks the words of the program. An image that is not resolved yet may still give them.
func (c *checks) argv(s pando.Spec) {
	words := s.Argv()
	if s.IsVM() {
		return // the driver makes them
	}
	open := s.Image.Reference != "" && s.Image.Digest == ""
	c.that(open || len(words) > 0 && words[0] != "", "command: is empty, and no image gives one")
	for i, word := range s.Entrypoint {
		c.text(fmt.Sprintf("entrypoint[%d]", i), word)
	}
	for i, word := range s.Command {
		c.text(fmt.Sprintf("command[%d]", i), word)
	}
}

// connectConflicts returns the keys that need packets: none of a socket passes a counter.
func connectConflicts(s pando.Spec) (out []conflict) {
	if s.Balance.At != pando.AtConnect {
		return nil
	}
	if s.Scale.Zero {
		out = append(out, conflict{"scale.min",
			"0 ends a service without packets, and balance.at: connect hides them: drop one of them"})
	}
	if s.Scale.By == pando.ByPackets {
		out = append(out, conflict{"scale.by",
			"packets/s counts packets, and balance.at: connect hides them: use connections/s"})
	}
	return out
}

// scaleConflicts returns the keys of `scale` that contradict its metric.
func scaleConflicts(s pando.Scale) (out []conflict) {
	add := func(key, text string) { out = append(out, conflict{"scale." + key, text}) }
	if s.IdleSeconds > 0 && !s.Zero {
		add("idle", "has an effect with min: 0 alone")
	}
	d := pando.Spec{Scale: s}.WithDefaults().Scale
	switch {
	case s.AheadSeconds > 0 && (s.By == pando.ByNothing || s.By == pando.ByScores):
		add("ahead", "forecasts a load that is counted: add by: connections/s, packets/s or the name "+
			"of a number of the application")
	case s.AheadSeconds > 600:
		add("ahead", fmt.Sprintf("%gs is more than 10m: no ramp lasts so long", s.AheadSeconds))
	}
	switch {
	case s.By == pando.ByScores && s.Target != 0:
		add("target", "has no effect with by: score, which has up and down")
	case s.By == pando.ByScores && d.Down >= d.Up:
		add("down", fmt.Sprintf("%g is not below up %g: instances would come and go", d.Down, d.Up))
	case s.By != pando.ByScores && s.Up != 0:
		add("up", "has no effect without by: score")
	case s.By != pando.ByScores && s.Down != 0:
		add("down", "has no effect without by: score")
	case s.By != pando.ByNothing && s.By != pando.ByScores && s.Target == 0:
		add("by", "needs a target per instance beside it, such as target: 100")
	}
	return out
}

// checks collects errors.
type checks struct{ errs []error }

// also adds the error of another check. The caller of the API has sent it, whatever that check calls
// it.
func (c *checks) also(err error) {
	if err != nil && !errors.Is(err, pando.ErrInvalid) {
		err = fmt.Errorf("%w: %w", pando.ErrInvalid, err)
	}
	if err != nil {
		c.errs = append(c.errs, err)
	}
}

func (c *checks) that(holds bool, format string, args ...any) {
	if !holds {
		c.errs = append(c.errs, fmt.Errorf("%w: "+format, append([]any{pando.ErrInvalid}, args...)...))
	}
}

func (c *checks) text(where, s string) {
	c.that(!strings.Contains(s, "\x00"), "%s: has a NUL byte", where)
	c.that(len(s) < textBytesMax, "%s: is longer than %d bytes", where, textBytesMax)
}

func (c *checks) seconds(where string, s float64) {
	c.that(s >= 0 && s <= SecondsMax, "%s: %g: want 0 to %g", where, s, SecondsMax)
}

func (c *checks) drain(s float64) {
	if s != pando.DrainForever {
		c.seconds("drain_seconds_max", s)
	}
}

func (c *checks) number(where string, n float64) {
	c.that(n >= 0 && !math.IsInf(n, 0), "%s: %g: want a number from 0 on", where, n)
}

// word reports an error unless got is one of want.
func word[T ~string](c *checks, where string, got T, want ...T) {
	for _, w := range want {
		if got == w {
			return
		}
	}
	words := make([]string, 0, len(want))
	for _, w := range want {
		if w != "" {
			words = append(words, string(w))
		}
	}
	c.that(false, "%s: %q: want %s", where, got, oneOf(words))
}

// signal checks a signal, which has the name that a spec writes.
func (c *checks) signal(where, s string) {
	name, err := pando.SignalName(s)
	c.that(s == "" || err == nil && name == s, "%s: %q: want a signal such as SIGTERM or SIGRTMIN+3",
		where, s)
}

// aliases checks the further names of a service.
func (c *checks) aliases(s pando.Spec) {
	c.that(len(s.Aliases) <= pando.AliasesMax, "aliases: %d: at most %d", len(s.Aliases),
		pando.AliasesMax)
	for _, a := range s.Aliases {
		c.also(pando.CheckAlias(a))
	}
}

func (c *checks) ports(ports []pando.Port) {
	seen := map[pando.Port]bool{}
	for i, p := range ports {
		where := fmt.Sprintf("ports[%d]", i)
		c.that(p.Published > 0 && p.Target > 0, "%s: a port is 0: want 1 to 65535", where)
		word(c, where+".protocol", p.Protocol, pando.TCP, pando.UDP)
		published := pando.Port{Published: p.Published, Protocol: p.Protocol}
		c.that(!seen[published], "%s: %d/%s is published twice", where, p.Published, p.Protocol)
		seen[published] = true
		inside := pando.Port{Target: p.Target, Protocol: p.Protocol}
		c.that(!seen[inside], "%s: %d/%s has another published port: replies would be ambiguous; "+
			"publish it once", where, p.Target, p.Protocol)
		seen[inside] = true
	}
}

func (c *checks) scale(s pando.Scale, published bool) {
	for where, n := range map[string]int{
		"scale.min": s.Min, "scale.max": s.Max, "scale.warm": s.Warm,
	} {
		c.that(n >= 0 && n <= InstancesMax, "%s: %d: want 0 to %d", where, n, InstancesMax)
	}
	c.that(!s.Zero || s.Min == 0, "scale.zero: min is %d: drop one of them", s.Min)
	c.that(!s.Zero || s.FromZero() || s.By == pando.ByNothing, "scale.zero: %s", zeroBy)
	c.that(s.Max == 0 || s.Max >= s.Min, "scale.max: %d is less than min %d", s.Max, s.Min)
	c.number("scale.rate_per_second", s.RatePerSecond)
	c.number("scale.target", s.Target)
	if err := s.By.Check(); err != nil {
		c.also(fmt.Errorf("scale.by: %w", err))
	}
	c.number("scale.up", s.Up)
	c.number("scale.down", s.Down)
	for _, why := range scaleConflicts(s) {
		c.that(false, "%s: %s", why.path, why.text)
	}
	c.that(!s.By.Counted() || published,
		"scale.by: counts traffic of a published port, and there is none")
	c.seconds("scale.quiet_seconds", s.QuietSeconds)
	c.seconds("scale.idle_seconds", s.IdleSeconds)
	c.seconds("scale.ahead_seconds", s.AheadSeconds)
	c.that(s.IdleSeconds == 0 || published,
		"scale.idle: counts traffic of a published port, and there is none")
}

const bundleInImage = "an image has its own files: put the folder into the image, or drop image"
