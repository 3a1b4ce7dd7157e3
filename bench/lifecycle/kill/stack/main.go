// Stack is the paper's way to run a service (container-devops §III-B), as a peer of the bench. Its
// parts are etcd, crun and HAProxy.
//
//	stack sidekick ETCD NAME ADDRESS BUNDLE
//	stack confd ETCD CONFIG
//
// A sidekick runs a container and starts it again after its end. Each second it asks the program's
// page /live, and keeps the address in etcd while that answers. confd follows these addresses,
// writes the configuration of HAProxy, and lets HAProxy read it. It never looks at a container.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// prefix is that of the keys: one for each container, with its address.
const prefix = "/services/web/"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "stack:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if !(len(args) == 5 && args[0] == "sidekick" || len(args) == 3 && args[0] == "confd") {
		return fmt.Errorf("want sidekick ETCD NAME ADDRESS BUNDLE, or confd ETCD CONFIG, got %q", args)
	}
	store, err := clientv3.New(clientv3.Config{Endpoints: []string{args[1]},
		DialTimeout: 10 * time.Second})
	if err != nil {
		return fmt.Errorf("reach etcd: %w", err)
	}
	defer store.Close()
	if args[0] == "confd" {
		return (&confd{store: store, file: args[2]}).run(ctx)
	}
	s := sidekick{store: store, name: args[2], address: args[3], every: time.Second}
	go s.register(ctx)
	return keep(ctx, args[4], args[2])
}

// again is the time between the end of a container and its next start (RestartSec of systemd).
const again = 100 * time.Millisecond

// alone hides cgroup v2 beside v1 from a command: crun of Debian 12 refuses both.
const alone = "umount -l /sys/fs/cgroup/unified 2>/dev/null; exec \"$0\" \"$@\""

// crun returns a command of crun for a bundle.
func crun(ctx context.Context, bundle string, words ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "unshare", append([]string{"--mount", "--propagation", "private",
		"sh", "-c", alone, "crun", "--cgroup-manager=disabled", "--root", filepath.Join(bundle, "state")},
		words...)...)
}

// keep runs a container until ctx ends. It starts it again when it has ended.
func keep(ctx context.Context, bundle, name string) error {
	remove := func() {
		_ = crun(context.WithoutCancel(ctx), bundle, "delete", "--force", name).Run()
	}
	defer remove()
	for ctx.Err() == nil {
		c := crun(ctx, bundle, "run", "--bundle", bundle, name)
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		fmt.Println(name, "ended:", c.Run())
		remove()
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
	return nil
}
