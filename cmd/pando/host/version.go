package host

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
)

// Version returns `pando version`.
func Version(o *console.Console) *cobra.Command {
	return o.Out.Flag(&cobra.Command{
		Use: "version", Short: "print the version", Example: "  pando version -o json",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version string `json:"version"`
				Go      string `json:"go"`
				System  string `json:"system"`
				Kernel  string `json:"kernel"`
			}{cli.Version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, kernelRelease()}
			return o.Out.Show(v, func(w io.Writer) {
				fmt.Fprintf(w, "pando %s (%s, %s, Linux %s)\n", v.Version, v.Go, v.System, v.Kernel)
			})
		},
	})
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
