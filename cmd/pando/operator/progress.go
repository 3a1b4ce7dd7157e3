package operator

import (
	"fmt"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
)

// progress prints the changes of instances while a command waits on a terminal. A nil progress
// prints nothing.
type progress struct {
	env   cli.Env
	began time.Time
	mu    sync.Mutex
	known map[pando.InstanceID]pando.Phase
	shown map[string]bool // IDs of printed decisions
}

// watching returns a progress that prints the changes after the given statuses. It returns nil if
// the output is for a program.
func (o *Console) watching(known ...pando.ServiceStatus) *progress {
	if o.JSON || !cli.IsTerminal(o.Stdout) {
		return nil
	}
	p := &progress{
		env: o.Env, began: time.Now(),
		known: map[pando.InstanceID]pando.Phase{}, shown: map[string]bool{},
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
func (p *progress) print(st pando.ServiceStatus) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	page := cli.NewPage(p.env)
	line := func(text string) {
		text = fmt.Sprintf("  +%-6s  %s", brief(time.Since(p.began)), cli.Clean(text))
		fmt.Fprintln(page, page.Fit(text))
	}
	for _, i := range st.Instances {
		if p.known[i.ID] == i.Phase {
			continue
		}
		p.known[i.ID] = i.Phase
		text := fmt.Sprintf("%s  revision %d  %s", i.ID, i.Revision, i.Phase)
		if i.Reason != "" {
			text += ": " + i.Reason
		}
		line(text)
		if i.Phase == pando.PhaseFailed && st.Problem != nil && st.Problem.Instance == i.ID {
			p.shown[st.Problem.ID] = true
		}
	}
	if d := st.Problem; d != nil && !p.shown[d.ID] {
		p.shown[d.ID] = true
		line(fmt.Sprintf("%s  %s: %s", subject(d.By, d.Instance), d.Kind, d.Reason))
	}
	// A lost line is harmless: the result of the command follows.
	_, _ = p.env.Stdout.Write(page.Bytes())
}
