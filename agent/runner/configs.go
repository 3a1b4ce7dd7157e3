package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/supply"
)

// Times of configs. The first change counts at once. During a burst, the pause between two
// looks grows, so that a program reloads at most every configWaitMax.
const (
	configWaitMin = 250 * time.Millisecond
	configWaitMax = 2 * time.Second
	configQuiet   = 10 * time.Second // after a change: the next one counts at once
	ConfigRetry   = 30 * time.Second // a config that was refused is tried again
)

// reconfigure renders the templates of a running instance again. The sandbox
// compares the contents, so a look without a change has no effect.
func (r *Runner) reconfigure() {
	spec := r.spec()
	if r.box == nil || r.exited != nil || r.inst.Run != nil || !spec.Templated() {
		return // an instance of a run keeps its first files
	}
	if r.config.running {
		r.config.again = true
		return
	}
	r.config.running, r.config.again = true, false
	now := r.host.Clock.Now()
	wait := max(0, r.config.wait-now.Sub(r.config.last))
	box, inst := r.box, r.inst
	r.host.Spawn(func(ctx context.Context) {
		var o configOutcome
		if o.err = r.pauseFor(ctx, wait); o.err == nil {
			o = r.bringConfigs(ctx, inst, spec, box)
		}
		r.post(configsBrought{o})
	})
}

// pauseFor waits, and returns an error if the instance ends meanwhile.
func (r *Runner) pauseFor(ctx context.Context, wait time.Duration) error {
	if wait <= 0 {
		return nil
	}
	timer, stop := r.host.Clock.After(wait)
	defer stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-r.ended:
		return context.Canceled
	case <-timer:
		return nil
	}
}

// bringConfigs renders the templates of an instance and gives its sandbox those that differ.
func (r *Runner) bringConfigs(
	ctx context.Context, i pando.Instance, spec pando.Spec, box pando.Sandbox,
) (o configOutcome) {
	o.refused = map[string]refusal{}
	var secrets map[string][]byte
	all := r.host.Supplier.Templates()
	for _, c := range spec.Configs {
		if !c.Template {
			continue
		}
		private := supply.ReadsSecrets(c)
		if private && secrets == nil {
			if secrets, o.err = r.host.Supplier.SecretsOf(ctx, i.ID, spec); o.err != nil {
				return o
			}
		}
		file, err := all.Render(i, spec, c, secrets)
		changed := false
		if err == nil {
			checking, cancel := context.WithTimeout(ctx, pando.ConfigCheckMax)
			changed, err = box.Reconfigure(checking, pando.ConfigChange{
				ConfigFile: file, OnChange: c.OnChange,
			})
			cancel()
		}
		if err != nil {
			o.refused[c.Name] = refusalOf(err, private)
		}
		if changed {
			o.changed = append(o.changed, c.Name)
		}
	}
	return o
}

// hushed explains why the output of a check is missing.
const hushed = "; its output is left out, because the file has secrets"

// refusalOf returns the reason of an error. The output of a check may quote a file with secrets, so
// it is left out then.
func refusalOf(err error, private bool) refusal {
	out := refusal{reason: cause(err)}
	var check *pando.CheckFailed
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		out.reason = fmt.Sprintf("its check did not end within %s", pando.ConfigCheckMax)
	case errors.As(err, &check) && private:
		out.reason += hushed + ": run the check again with `pando exec`"
	case errors.As(err, &check):
		out.lines = evidence(string(check.Output))
	}
	return out
}

// failStart fails an instance that could not start. A refused config shows the last lines of its
// check.
func (r *Runner) failStart(spec pando.Spec, err error) {
	var check *pando.CheckFailed
	if !errors.As(err, &check) {
		r.fail(err.Error(), nil)
		return
	}
	reason, lines := err.Error(), evidence(string(check.Output))
	if slices.ContainsFunc(spec.Configs, func(c pando.Config) bool {
		return c.Name == check.Config && supply.ReadsSecrets(c)
	}) {
		reason, lines = reason+hushed, nil
	}
	r.failHook(reason+"; mend the file or its check, and deploy again", lines)
}

// cause returns the text of an error without the name of its kind.
func cause(err error) string {
	return strings.TrimPrefix(err.Error(), pando.ErrInvalid.Error()+": ")
}

// evidence returns the last lines of a text in a form that is fit for a record.
func evidence(text string) (out []string) {
	const most = 10
	for line := range strings.Lines(text) {
		if line = records.OneLine(strings.TrimSpace(line), records.EvidenceBytesMax); line != "" {
			out = append(out, line)
		}
	}
	return out[max(0, len(out)-most):]
}

// reconfigured records the end of a look.
func (r *Runner) reconfigured(ctx context.Context, o configOutcome) {
	c, now := &r.config, r.host.Clock.Now()
	c.running = false
	if ctx.Err() != nil || r.box == nil || errors.Is(o.err, context.Canceled) {
		return
	}
	if o.err != nil {
		o.refused = map[string]refusal{"configs": {reason: cause(o.err)}}
	}
	if len(o.changed) > 0 {
		quiet := now.Sub(c.last) > configQuiet
		c.last, c.wait = now, min(configWaitMax, 2*c.wait)
		if quiet || c.wait == 0 {
			c.wait = configWaitMin
		}
		slices.Sort(o.changed)
		text := "it has a new " + strings.Join(o.changed, ", ")
		r.host.Log.Info(text, "instance", r.ID)
		r.decide(ctx, pando.DecidedConfig, text, nil)
	}
	r.complain(o.refused)
	if len(c.refused) > 0 && !c.retries {
		c.retries = true
		r.host.Spawn(func(ctx context.Context) {
			if r.pauseFor(ctx, ConfigRetry) == nil {
				r.post(configsChanged{retry: true})
			}
		})
	}
	if c.again {
		r.reconfigure()
	}
}

// complain records the configs that keep an older content, once for each reason.
func (r *Runner) complain(refused map[string]refusal) {
	c, was := &r.config, r.config.refused
	c.refused = map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(refused)) {
		one := refused[name]
		c.refused[name] = one.reason
		if was[name] == one.reason {
			continue
		}
		d := r.decision(pando.DecidedConfig,
			pando.ConfigKept+name+": "+one.reason, nil)
		d.Lines = one.lines
		r.host.Log.Warn("an instance keeps an older config", "instance", r.ID, "config", name,
			"error", one.reason)
		r.explainConfig(d.Reason, &d)
	}
	shown := len(was) > 0 || strings.HasPrefix(r.inst.Reason, pando.ConfigKept) // by a former agent
	if shown && len(c.refused) == 0 {
		r.explainConfig("all its configs are the newest again", nil)
	}
}

// explainConfig shows a reason on the line of the instance.
func (r *Runner) explainConfig(reason string, d *pando.Decision) {
	r.inst.Reason = reason
	r.recorder.Add(r.inst, d)
	r.show()
}
