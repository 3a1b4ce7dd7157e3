package cli

import (
	"time"

	"github.com/spf13/pflag"

	"pando.run/pando/spec/span"
)

// DurationVar adds a flag for a length of time, which may have days: 1d12h.
func DurationVar(f *pflag.FlagSet, d *time.Duration, name string, otherwise time.Duration,
	usage string) {
	*d = otherwise
	f.Var((*span.Value)(d), name, usage)
}
