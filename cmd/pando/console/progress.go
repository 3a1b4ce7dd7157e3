package console

import (
	"cmp"
	"fmt"
	"strings"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
)

// Progress prints the changes of instances while a command waits on a terminal. A nil progress
// prints nothing.
type Progress struct {
	env   cli.Env
	began time.Time
	mu    sync.Mutex
	known map[pando.InstanceID]pando.Phase
	shown map[string]bool             // IDs of printed decisions
	waits map[pando.ServiceKey]string // what each service waits for, as printed
}

// Progress returns a progress that prints the changes after the given statuses. It returns nil if
// the output is for a program.
func (o *Console) Progress(known ...pando.ServiceStatus) *Progress {
	if o.Out.JSON || !cli.IsTerminal(o.Out.Stdout) {
		return nil
	}
	p := &Progress{
		env: o.Out.Env, began: time.Now(),
		known: map[pando.InstanceID]pando.Phase{}, shown: map[string]bool{},
		waits: map[pando.ServiceKey]string{},
	}
	for _, st := range known {
		for _, i := range st.Instances {
			p.known[i.ID] = i.Phase
		}
		if st.Problem != nil {
			p.shown[st.Problem.ID] = true
		}
	}
	return p
}

// print prints a line for each instance of a service that has changed since the last call.
func (p *Progress) print(st pando.ServiceStatus) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	page := cli.NewPage(p.env)
	line := func(text string) {
		text = fmt.Sprintf("  +%-6s  %s", Brief(time.Since(p.began)), cli.Clean(text))
		fmt.Fprintln(page, page.Fit(text))
	}
	for _, i := range st.Instances {
		if p.known[i.ID] == i.Phase {
			continue
		}
		p.known[i.ID] = i.Phase
		text := fmt.Sprintf("%s  revision %d  %s", i.ID, i.Revision, PhaseOf(i))
		if i.Reason != "" {
			text += ": " + i.Reason
		}
		line(text)
		if i.Phase == pando.PhaseFailed && st.Problem != nil && st.Problem.Instance == i.ID {
			p.shown[st.Problem.ID] = true
		}
	}
	if about, why := waitsFor(st); about != p.waits[st.ServiceKey] {
		if p.waits[st.ServiceKey] = about; why != "" {
			line(fmt.Sprintf("%s  %s", st.ServiceKey, why))
		}
	}
	if d := st.Problem; d != nil && !p.shown[d.ID] {
		p.shown[d.ID] = true
		line(fmt.Sprintf("%s  %s: %s", Subject(d.By, d.Instance), d.Kind, d.Reason))
	}
	// A lost line is harmless: the result of the command follows.
	_, _ = p.env.Stdout.Write(page.Bytes())
}

// waitsFor returns what a service waits for, or "". It waits for a start, or for the drain of an
// instance. about stays the same while only the times in why change.
func waitsFor(st pando.ServiceStatus) (about, why string) {
	switch st.Phase {
	case pando.ServiceServing, pando.ServiceCompleted, pando.ServiceRemoving:
		if drains := pando.DrainsOf(st.Instances); drains != "" {
			for _, i := range st.Instances {
				if i.Phase == pando.PhaseDraining && cmp.Or(i.Waits, i.Away) != "" {
					return string(i.ID), drains
				}
			}
			return drains, drains
		}
		return "", ""
	}
	_, why, _ = strings.Cut(st.Reason, ": ") // behind the number of instances
	return why, why
}

// delayed returns the first instance that does not serve yet or leaves, with its reason, or "". On a
// terminal, progress prints each.
func delayed(st pando.ServiceStatus) (about, why string) {
	for _, i := range st.Instances {
		about = fmt.Sprintf("%s is %s", i.ID, PhaseOf(i))
		switch {
		case i.Phase == pando.PhaseInRotation && i.Waits != "":
			return about, fmt.Sprintf("%s %s", i.ID, i.Waits)
		case i.Away != "":
			return about, about + ": " + i.Away
		case i.Phase.Leaving(), !i.Phase.TakesFlows() && !i.Warm:
			return about, strings.TrimSuffix(about+": "+i.Reason, ": ")
		}
	}
	return "", ""
}

// ReasonAfter is how long a service waits before its reason is printed. Most waits are shorter.
const ReasonAfter = time.Second

// Reasons prints why a service waits, each reason once, for a command without a terminal.
// On a terminal, progress prints them.
type Reasons struct {
	O     *Console
	shown bool // by progress
	Began time.Time
	last  string
}

// Print prints why a service waits, unless it printed that last.
func (r *Reasons) Print(st pando.ServiceStatus) {
	about, why := waitsFor(st)
	if why == "" {
		about, why = delayed(st)
	}
	if r.shown || why == "" || about == r.last || time.Since(r.Began) < ReasonAfter {
		return
	}
	r.last = about
	// A lost line is harmless: the result of the command follows.
	fmt.Fprintf(r.O.Out.Stderr, "waiting: %s: %s\n", st.ServiceKey, cli.Clean(why))
}
