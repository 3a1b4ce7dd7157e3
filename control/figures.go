package control

import (
	"context"
	"maps"

	"pando.run/pando"
)

// Figures implements pando.Operators.
func (c *Control) Figures(context.Context) (pando.ServerFigures, error) {
	t := &c.mirror.Figures
	f := pando.ServerFigures{
		Terms: t.Terms.Load(), Lost: t.Lost.Load(), Written: t.Written.Load(),
		Conflicts: t.Conflicts.Load(), Failed: t.Failed.Load(),
		Decisions: map[pando.ServiceKey]map[pando.DecisionKind]uint64{},
	}
	f.Leads = c.leading() != pando.Fence{}
	c.mirror.Mu.RLock()
	for s, kinds := range t.Decisions {
		f.Decisions[s] = maps.Clone(kinds)
	}
	c.mirror.Mu.RUnlock()
	if c.process != nil {
		c.process(&f)
	}
	return f, nil
}
