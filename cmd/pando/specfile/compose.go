// Package specfile reads the specs of a command: a spec file, a Compose file, or a folder of them.
package specfile

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/driver/compose"
	"pando.run/pando/driver/gateway"
	"pando.run/pando/spec"
)

// Flags holds the flags that choose a part of a Compose file.
type Flags struct {
	project  string
	profiles []string
	strict   bool
	Env      string
}

// Add adds the flags to a command that takes spec files and Compose files.
func (f *Flags) Add(c *cobra.Command) {
	c.Flags().StringVarP(&f.project, "project", "p", "",
		"of a Compose file: the tenant of its services")
	c.Flags().StringSliceVar(&f.profiles, "profile", nil,
		"of a Compose file: add the services of a profile")
	c.Flags().BoolVar(&f.strict, "strict", false,
		"of a Compose file: refuse it if a word is left out")
	f.AddEnv(c)
}

// AddEnv adds the flag that chooses an environment.
func (f *Flags) AddEnv(c *cobra.Command) {
	c.Flags().StringVar(&f.Env, "env", "",
		"environment: add the changes of FILE.ENV.yaml beside FILE.yaml")
}

// load reads the specs of a spec file or a Compose file. It prints
// the words that a conversion leaves out.
func Load(ctx context.Context, o *console.Console, path string, f Flags) ([]pando.Spec, error) {
	data, err := readFile(ctx, o, path, f)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("read the spec %s: %w", path, err)
	}
	overlay, changes := "", []byte(nil)
	if f.Env != "" {
		if overlay, changes, err = spec.ReadOverlay(ctx, path, f.Env); err != nil {
			return nil, err
		}
	}
	if gateway.Is(data) {
		return routed(o, path, data, f)
	}
	if !compose.Is(data) {
		if f.project != "" || f.strict || len(f.profiles) > 0 {
			return nil, cli.Usagef("--project, --profile and --strict are for Compose files, and %s is "+
				"a spec", path)
		}
		if f.Env != "" {
			return spec.ParseWith(path, data, overlay, changes, dir)
		}
		return spec.Parse(path, data, dir)
	}
	r, err := compose.Parse(ctx, path, data, dir, compose.Options{
		Project: f.project, Profiles: f.profiles, Environ: os.Environ(),
		Overlay: overlay, Changes: changes,
	})
	if err != nil {
		return nil, err
	}
	if f.strict && len(r.Warnings) > 0 {
		return nil, r.Warnings
	}
	for _, w := range r.Warnings {
		fmt.Fprintf(o.Out.Stderr, "warning: %s\n", cli.Clean(w.Error()))
	}
	return r.Specs, nil
}

// read returns the content of a file, or of the standard input for the name -. Paths in it are
// relative to the working folder then.
func readFile(ctx context.Context, o *console.Console, path string, f Flags) ([]byte, error) {
	if path != "-" {
		return spec.Read(ctx, path)
	}
	if f.Env != "" {
		return nil, cli.Usagef("--env names a file beside the spec, and the standard input has none")
	}
	return spec.ReadFrom(ctx, o.Out.Stdin)
}

// routed reads the specs of manifests of the Gateway API.
func routed(o *console.Console, path string, data []byte, f Flags) ([]pando.Spec, error) {
	if f.project != "" || f.strict || len(f.profiles) > 0 || f.Env != "" {
		return nil, cli.Usagef("--project, --profile, --strict and --env are for other files; %s has "+
			"manifests of the Gateway API", path)
	}
	r, err := gateway.Parse(path, data)
	if err != nil {
		return nil, err
	}
	for _, w := range r.Warnings {
		fmt.Fprintf(o.Out.Stderr, "warning: %s\n", cli.Clean(w.Error()))
	}
	return r.Specs, nil
}

// Convert returns `pando convert`.
func Convert(o *console.Console) *cobra.Command {
	var f Flags
	c := &cobra.Command{
		Use: "convert FILE", Short: "print the specs of a Compose file or of a Gateway",
		Long: "Print the spec of each service of a Compose file. The project becomes the tenant, so\n" +
			"its services find each other by their names. A word that is left out is a warning with\n" +
			"its place in the file, or an error if the programs need it. Manifests of the Gateway API\n" +
			"(Gateway, TCPRoute, UDPRoute, EndpointSlice) become services with external endpoints.",
		Example: "  pando convert compose.yaml > pando.yaml\n" +
			"  pando convert compose.yaml --project shop --strict",
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: cobra.FixedCompletions(
			[]cobra.Completion{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt),
		RunE: func(c *cobra.Command, args []string) error {
			specs, err := Load(c.Context(), o, args[0], f)
			if err != nil {
				return err
			}
			return o.Out.Show(specs, func(w io.Writer) {
				for n, s := range specs {
					if n > 0 {
						fmt.Fprintln(w, "---")
					}
					_, _ = w.Write(spec.Format(s))
				}
			})
		},
	}
	f.Add(c)
	return o.Out.Flag(c)
}

// LoadOne reads a file with one spec.
func LoadOne(
	ctx context.Context, o *console.Console, path string, f Flags,
) (pando.Spec, error) {
	all, err := Load(ctx, o, path, f)
	if err != nil {
		return pando.Spec{}, err
	}
	if len(all) != 1 {
		var names []string
		for _, s := range all {
			names = append(names, string(s.Name))
		}
		return pando.Spec{}, fmt.Errorf("%w: %s has %s (%s), and a run needs one; put it into a file "+
			"of its own, or `pando deploy %s` and `pando run SERVICE`", pando.ErrInvalid, path,
			cli.Count(len(all), "service"), strings.Join(names, ", "), path)
	}
	return all[0], nil
}

// IsSpecFile reports whether an argument names a file. The name of a service has no dot.
func IsSpecFile(arg string) bool {
	ext := filepath.Ext(arg)
	return ext == ".yaml" || ext == ".yml"
}
