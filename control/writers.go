package control

import (
	"fmt"

	"pando.run/pando"
)

// twoWriters returns a warning if two instances of a program may write to its folder at the same
// time, or "". Databases and queues corrupt their files that way. A program that reports ready
// itself, or keeps its state in Pando, was written to run beside others.
func (c *operators) twoWriters(s pando.Spec) string {
	knows := s.Health.Ready.Kind == pando.ProbeExplicit || len(s.State) > 0
	if knows || s.Single() || s.Files().Digest != "" || c.writable == nil ||
		!c.writable(s) {
		return ""
	}
	when := fmt.Sprintf("scale.max is %d", s.Scale.Max)
	if s.Rollout.Order != pando.StopFirst {
		when = "a rollout starts the new one beside the old"
	}
	return fmt.Sprintf("two instances may write to %s at the same time: all share it, and %s; "+
		"if the program needs it for itself, as a database does, set scale: {max: 1}", s.WorkingDir, when)
}
