// Command pando-demo shows Pando at work on this machine, live, and writes a report. Without a role
// it runs a website that scales itself. With the role `fn` it sends a capture through network
// functions. With the role `load` it is only the load generator.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"pando.run/pando/demo/function"
	"pando.run/pando/demo/screen"
	"pando.run/pando/demo/website"
)

func main() {
	ending := []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}
	if signal.Ignored(syscall.SIGHUP) { // nohup
		ending = ending[:2]
	}
	ctx, stop := signal.NotifyContext(context.Background(), ending...)
	defer stop()
	err := run(ctx, os.Args[1:])
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "pando-demo:", err)
	if errors.Is(err, screen.ErrInterrupted) {
		os.Exit(130)
	}
	os.Exit(1)
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "load" {
		return website.Offer(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == "fn" {
		return function.Demo(ctx, args[1:])
	}
	return website.Demo(ctx, args)
}
