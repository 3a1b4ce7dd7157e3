package service

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
)

// oneLine prints a service after a change.
func oneLine(w io.Writer, st pando.ServiceStatus) {
	fmt.Fprintf(w, "%s  revision %d  %s (%s)  VIP %s\n",
		cli.Clean(st.ServiceKey.String()), st.Target, cli.Clean(string(st.Phase)), cli.Clean(st.Reason),
		cli.Clean(st.VIP))
}

// services prints a line per service.
func services(w io.Writer, all []pando.ServiceStatus) {
	if len(all) == 0 {
		fmt.Fprintln(w, "no services yet: pando deploy SPEC.yaml")
		return
	}
	rows := []string{console.Row("SERVICE", "PHASE", "INSTANCES", "REV", "VIP", "PORTS", "REASON")}
	for _, st := range all {
		count := fmt.Sprintf("%d of %s", st.InRotation, console.Bounds(st.Scale))
		rows = append(rows, console.Row(st.ServiceKey, st.Phase, count, st.Target, st.VIP, ports(st.Ports),
			unlessWell(st)))
	}
	cli.Columns(w, rows...)
}

// unlessWell returns the reason of a service's phase unless the service serves.
func unlessWell(st pando.ServiceStatus) string {
	if st.Phase == pando.ServiceServing {
		return ""
	}
	return st.Reason
}

func ports(all []pando.Port) string {
	var out []string
	for _, p := range all {
		out = append(out, fmt.Sprintf("%d/%s", p.Published, p.Protocol))
	}
	return strings.Join(out, ",")
}

// instances prints a line per instance. on are the hosts, if they are known.
func instances(w io.Writer, all []pando.ServiceStatus, now time.Time, on ...pando.HostStatus) {
	rows := []string{console.Row("SERVICE", "INSTANCE", "HOST", "ENDPOINT", "REV", "PHASE", "FOR", "REASON")}
	for _, st := range all {
		if len(st.Instances) == 0 && st.Problem != nil {
			home := cmp.Or(st.Home, "-")
			rows = append(rows, console.Row(st.ServiceKey, "-", home, "-", st.Target, st.Phase, "-", backOff(st)))
		}
		for _, i := range st.Instances {
			reason := i.Reason
			if i.Phase == pando.PhaseInRotation && !strings.HasPrefix(reason, pando.ConfigKept) {
				reason = ""
			}
			name := st.ServiceKey
			if st.Roll != nil && i.Ordinal > 0 {
				name.Name = pando.ServiceName(pando.OrdinalName(name.Name, i.Ordinal))
			}
			rows = append(rows, console.Row(name, i.ID, i.Host, cmp.Or(i.Endpoint, console.RunOf(i)),
				i.Revision, console.PhaseOf(i), inPhase(i, now, on), cmp.Or(i.Away, i.Waits, reason)))
		}
	}
	if len(rows) == 1 {
		fmt.Fprintln(w, "no instances")
		return
	}
	cli.Columns(w, rows...)
}

// inPhase returns how long an instance has been in its phase. Its host wrote the begin by its own clock,
// but for the phases that control orders. A time that is not known is "-".
func inPhase(i pando.InstanceStatus, now time.Time, on []pando.HostStatus) string {
	ordered := i.Phase == pando.PhasePlaced || i.Phase == pando.PhaseDraining
	for _, h := range on {
		if h.Name == i.Host && h.SkewSeconds != nil && !ordered {
			now = now.Add(time.Duration(*h.SkewSeconds * float64(time.Second)))
		}
	}
	if spent := now.Sub(i.Since); spent > -pando.SkewShown {
		return console.Brief(max(0, spent))
	}
	return "-"
}

// fits prints a line per host: whether the next instance of a service may start there.
func fits(w io.Writer, all []pando.HostFit) {
	rows := []string{console.Row("HOST", "INSTANCES", "NEXT", "REASON")}
	for _, f := range all {
		next := "no"
		switch {
		case f.Next:
			next = "yes"
		case f.Takes:
			next = "later"
		}
		rows = append(rows, console.Row(f.Host, f.Instances, next, f.Reason))
	}
	cli.Columns(w, rows...)
}

// backOff explains a service without instances: the number of failures and the newest reason.
func backOff(st pando.ServiceStatus) string {
	return fmt.Sprintf("%s since the deploy, the newest: %s", cli.Count(st.Failures, "failure"),
		st.Problem.Reason)
}

// resolver returns the address at which every host answers for the names of services: the first of
// the range that a VIP is from.
func resolver(vip string) netip.Addr {
	a, err := netip.ParseAddr(vip)
	if err != nil || !a.Is4() {
		return pando.Gateway4
	}
	return netip.PrefixFrom(a, pando.VIPs4.Bits()).Masked().Addr().Next()
}

// whole prints everything about one service.
func whole(w io.Writer, st pando.ServiceStatus, now time.Time) {
	lines := []string{
		console.Row("service", st.ServiceKey),
		console.Row("phase", fmt.Sprintf("%s (%s)", st.Phase, st.Reason)),
		console.Row("revision", revision(st)),
		console.Row("address", strings.TrimSpace(fmt.Sprintf("%s  %s", st.VIP, ports(st.Ports)))),
		console.Row("name", fmt.Sprintf("%s inside instances; on the host: dig @%s %s",
			st.DNS, resolver(st.VIP), st.DNS)),
		console.Row("instances", fmt.Sprintf("%d in rotation, budget %s", st.InRotation, console.Bounds(st.Scale))),
	}
	if st.Failures > 0 {
		lines = append(lines, console.Row("failures", fmt.Sprintf("%d since the newest deploy", st.Failures)))
	}
	if st.Home != "" {
		lines = append(lines, console.Row("home", st.Home))
	}
	if rule := placeOf(st.Spec); rule != "" {
		lines = append(lines, console.Row("place", rule))
	}
	if st.Pin.Holds(now) {
		until := "until it is lifted"
		if !st.Pin.Until.IsZero() {
			until = "for another " + console.Brief(st.Pin.Until.Sub(now))
		}
		lines = append(lines,
			console.Row("pinned", fmt.Sprintf("at %d %s, by %s", st.Pin.Instances, until, st.Pin.By)))
	}
	if st.Problem != nil {
		problem := strings.TrimSpace(fmt.Sprintf("%s %s", st.Problem.Instance, st.Problem.Reason))
		lines = append(lines, console.Row("problem", problem))
		for _, l := range st.Problem.Lines {
			lines = append(lines, "\t| "+cli.Clean(l))
		}
	}
	cli.Columns(w, lines...)
	if st.Book != nil {
		fmt.Fprintln(w)
		console.RunTable(w, st.Book, now)
	}
	if len(st.Instances) > 0 {
		fmt.Fprintln(w)
		instances(w, []pando.ServiceStatus{st}, now)
	}
}

// placeOf returns the rule of placement in a spec, or "".
func placeOf(s *pando.Spec) string {
	if s == nil {
		return ""
	}
	var out []string
	for _, p := range [][2]string{
		{"spread", s.Place.Spread}, {"only", s.Place.Only}, {"apart from", string(s.Place.Apart)},
	} {
		if p[1] != "" {
			out = append(out, p[0]+" "+p[1])
		}
	}
	return strings.Join(out, ", ")
}

func revision(st pando.ServiceStatus) string {
	if st.Current == st.Target {
		return strconv.Itoa(st.Current)
	}
	return fmt.Sprintf("%d, on the way to %d", st.Current, st.Target)
}

func commits(w io.Writer, all []pando.StateCommit) {
	rows := []string{console.Row("COMMIT", "TIME", "BY", "MESSAGE")}
	for _, c := range all {
		message := c.Message
		if len(c.Conflicts) > 0 {
			message += " (both versions kept of " + strings.Join(c.Conflicts, ", ") + ")"
		}
		at := "-" // every service begins with this empty state
		if c.At > 0 {
			at = time.Unix(c.At, 0).Format("2006-01-02 15:04:05 MST")
		}
		rows = append(rows, console.Row(c.Commit.String()[:10], at, c.Instance, message))
	}
	cli.Columns(w, rows...)
}

// indent aligns text below the text of a line of `pando why`.
const indent = "                         "

// because prints one intent or decision: time, verb, subject and reason. The later steps follow on
// the next line.
func because(w io.Writer, b pando.Because) {
	if d := b.Decision; d != nil {
		fmt.Fprintf(w, "%s  %-11s%s: %s\n",
			clock(d.At), cli.Clean(string(d.Kind)), cli.Clean(console.Subject(d.By, d.Instance)),
			cli.Clean(d.Reason)+repeated(*d))
		for _, l := range d.Lines {
			fmt.Fprintf(w, "%s| %s\n", indent, cli.Clean(l))
		}
		return
	}
	i := b.Intent
	fmt.Fprintf(w, "%s  %-11s%s: %s%s\n",
		clock(i.Asked()), cli.Clean(string(i.Verb)), cli.Clean(about(*i)), cli.Clean(i.Why()),
		inputs(i.Inputs))
	if len(i.History) > 1 {
		fmt.Fprintf(w, "%s%s\n", indent, cli.Clean(steps(i.History)))
	}
}

// repeated returns how often an equal event happened, as text, or "" for once.
func repeated(d pando.Decision) string {
	if n := d.Times(); n > 1 {
		return fmt.Sprintf(" (%d times since then)", n)
	}
	return ""
}

// briefly prints one intent or decision on one line: its time, verb, subject, newest state and
// reason.
func briefly(w io.Writer, b pando.Because) {
	i := b.Intent
	if i == nil {
		d := *b.Decision
		d.Lines = nil
		because(w, pando.Because{Decision: &d})
		return
	}
	state := ""
	if n := len(i.History); n > 0 {
		state = ", " + string(i.History[n-1].State)
	}
	fmt.Fprintf(w, "%s  %-11s%s: %s\n", clock(i.Asked()), cli.Clean(string(i.Verb)),
		cli.Clean(about(*i)+state), cli.Clean(i.Why()))
}

// about returns the author of an intent and its instance.
func about(i pando.Intent) string {
	if i.Instance != "" && string(i.Instance) != i.By.Name {
		return fmt.Sprintf("%s → %s", i.By, i.Instance)
	}
	return i.By.String()
}

// steps returns the states of an intent after the first one. Each has the time since the ask, and
// its reason if that changed.
func steps(h []pando.Transition) string {
	var out []string
	for n, t := range h[1:] {
		text := fmt.Sprintf("%s %s", t.State, after(h[0].At, t.At))
		if t.Reason != h[n].Reason && t.Reason != "" {
			text += " (" + t.Reason + ")"
		}
		out = append(out, text)
	}
	return strings.Join(out, " → ")
}

// after returns the time of a step after the first one. A step before it is of another host's clock.
func after(first, t time.Time) string {
	if d := t.Sub(first); d < 0 {
		return "(by its host's clock " + console.Brief(-d) + " earlier)"
	}
	return "+" + console.Brief(t.Sub(first))
}

// inputs returns the inputs of a decision as text.
func inputs(m map[string]float64) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%s %s", cli.Clean(strings.ReplaceAll(k, "_", " ")), figure(m[k])))
	}
	if out == nil {
		return ""
	}
	return "  [" + strings.Join(out, ", ") + "]"
}

// figure formats a number with its significant digits.
func figure(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1e15 {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	digits := 3 - int(math.Floor(math.Log10(math.Abs(v))))
	return strconv.FormatFloat(v, 'f', min(max(digits, 0), 6), 64)
}

func clock(t time.Time) string { return t.Local().Format("15:04:05.000") }

// printEvent prints one change as a line.
func printEvent(o *console.Console, e api.Event) error {
	if o.Out.JSON {
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		return o.Out.Print(append(line, '\n'))
	}
	about, text := changed(e)
	if e.Deleted {
		about, text = gone(e.Key), "gone"
	}
	return o.Out.Print(fmt.Appendf(nil, "%s  %-9s %-20s %s\n",
		clock(time.Now()), cli.Clean(string(e.Kind)), cli.Clean(about), cli.Clean(text)))
}

// gone returns the name of a deleted record, of which only the key exists.
func gone(k pando.Key) string {
	parts := strings.Split(string(k), "/")
	ofService := []pando.Kind{pando.KindService, pando.KindHead, pando.KindIntent, pando.KindDecision}
	if s, ok := k.Service(); ok && slices.Contains(ofService, k.Kind()) {
		return s.String()
	}
	return parts[len(parts)-1]
}

// changed returns the subject of a record and its current content in words.
func changed(e api.Event) (about, text string) {
	reason := func(s string) string {
		if s == "" {
			return ""
		}
		return " (" + s + ")"
	}
	switch e.Kind {
	case pando.KindService:
		s := as[pando.Service](e)
		return s.ServiceKey.String(), fmt.Sprintf("%s%s, revision %d", s.Phase, reason(s.Reason),
			s.Target)
	case pando.KindRevision:
		r := as[pando.Revision](e)
		return r.Service.String(), fmt.Sprintf("revision %d is %s%s", r.Number, r.State, reason(r.Reason))
	case pando.KindInstance:
		i := as[pando.Instance](e)
		return string(i.ID), string(i.Phase) + reason(i.Reason)
	case pando.KindIntent:
		i := as[pando.Intent](e)
		text = fmt.Sprintf("%s by %s: %s%s", i.Verb, i.By, i.State, reason(i.Reason))
		return cmp.Or(string(i.Instance), i.Service.String()), text
	case pando.KindDecision:
		d := as[pando.Decision](e)
		return d.Service.String(), fmt.Sprintf("%s by %s: %s", d.Kind, console.Subject(d.By, d.Instance),
			d.Reason)
	case pando.KindHead:
		h := as[pando.StateHead](e)
		return h.Service.String(), "state is at " + h.Commit.String()[:10]
	case pando.KindHost:
		return string(as[pando.Host](e).Name), "joined"
	case pando.KindBookmark:
		return "", fmt.Sprintf("changes after store revision %d follow", e.Revision)
	}
	return "", ""
}

// as decodes the value of an event. It returns the zero value if decoding fails.
func as[T any](e api.Event) (v T) {
	_ = json.Unmarshal(e.Value, &v)
	return v
}
