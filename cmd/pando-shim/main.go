// Command pando-shim holds one sandbox; the agent starts one for each instance. It is the command
// `pando shim` without the rest of Pando. A process of it starts sooner and takes less memory.
package main

import (
	"os"

	"pando.run/pando/driver/sandbox/process/shim"
	"pando.run/pando/driver/sandbox/process/wire"
)

func main() { os.Exit(run(os.Args[1:])) }

// run holds a sandbox until its end. The first argument is the role, as for the pando binary.
func run(args []string) int {
	if len(args) > 0 && args[0] == wire.ShimRole {
		args = args[1:]
	}
	return shim.Main(args)
}
