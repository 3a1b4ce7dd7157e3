package sim

import (
	"context"
	"maps"

	"pando.run/pando"
)

// Reconfigure stores a config if the host's Check accepts it.
func (b *Sandbox) Reconfigure(_ context.Context, c pando.ConfigChange) (bool, error) {
	b.host.mu.Lock()
	defer b.host.mu.Unlock()
	if b.configs == nil {
		b.configs = b.started()
	}
	if b.configs[c.Name] == string(c.Content) {
		return false, nil
	}
	if b.host.Check != nil {
		if err := b.host.Check(c); err != nil {
			return false, err
		}
	}
	b.configs[c.Name] = string(c.Content)
	return true, nil
}

func (b *Sandbox) started() map[string]string {
	out := map[string]string{}
	for _, c := range b.Spec.Configs {
		out[c.Name] = string(c.Content)
	}
	return out
}

// Configs returns the configs of the instance, by name.
func (b *Sandbox) Configs() map[string]string {
	b.host.mu.Lock()
	defer b.host.mu.Unlock()
	if b.configs == nil {
		return b.started()
	}
	return maps.Clone(b.configs)
}
