// Command pando-demo shows an application that scales itself, on virtual hosts of this machine: it raises a lab, starts
// Pando in it, deploys a website, offers it a ramp of real HTTP and checks at the end that nothing was lost. With the
// role `load` it is the load generator alone. It never decides anything for the service that it loads.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "pando-demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "load" {
		return offer(ctx, args[1:])
	}
	return demo(ctx, args)
}
