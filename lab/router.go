package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// RouterName is the name of the member that routes.
const RouterName = "router"

// The autonomous systems of a lab with a router.
const (
	RouterAS = 64500
	HostsAS  = 64512
)

// BGP describes the sessions of the router with the hosts.
type BGP struct {
	Password string // "": none
	BFD      bool   // the router ends a session after 300 ms without packets
}

// routerSettings make a member forward packets and hash flows by their ports.
var routerSettings = []string{
	"net/ipv4/ip_forward=1", "net/ipv6/conf/all/forwarding=1",
	"net/ipv4/conf/all/send_redirects=0", "net/ipv4/conf/eth0/send_redirects=0",
	"net/ipv4/conf/all/rp_filter=0", "net/ipv4/conf/eth0/rp_filter=0",
	"net/ipv4/fib_multipath_hash_policy=1", "net/ipv6/fib_multipath_hash_policy=1",
}

// RouterFlag returns the flag of `pando up` that names the router.
func RouterFlag(l *Lab) string {
	return fmt.Sprintf("%s=%d", firstOf(l.Router.IPv4, l.Router.IPv6), RouterAS)
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// Route starts BIRD on the router, or gives the running one other settings. The hosts may open
// sessions with it. It spreads the flows of a VIP over all hosts that announce it.
func Route(ctx context.Context, l *Lab, c BGP) error {
	if l.Router.Name == "" {
		return errors.New("start the lab's router: the lab has none (`pando lab up --router`)")
	}
	if _, err := exec.LookPath("bird"); err != nil {
		return fmt.Errorf("start the lab's router: %w; install it: sudo apt-get install bird2", err)
	}
	file := fmt.Sprintf("/proc/%d/root/run/bird.conf", l.Router.Pid)
	if err := os.WriteFile(file, []byte(birdConf(l, c)), 0o600); err != nil {
		return fmt.Errorf("write the settings of the lab's router: %w", err)
	}
	script := "if [ -e /run/bird.ctl ]; then birdc -s /run/bird.ctl configure; else bird " +
		"-c /run/bird.conf -s /run/bird.ctl -P /run/bird.pid; fi"
	for _, s := range routerSettings {
		name, value, _ := strings.Cut(s, "=")
		script = fmt.Sprintf("echo %s >/proc/sys/%s\n", value, name) + script
	}
	cmd, err := l.Exec(ctx, RouterName, "sh", "-ec", script)
	if err != nil {
		return err
	}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("start the lab's router: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

// birdConf returns the settings of BIRD. It has each address of a host as a neighbour, installs
// every route as one with all its next hops, and announces nothing.
func birdConf(l *Lab, c BGP) string {
	var b strings.Builder
	fmt.Fprintf(&b, `log "/run/bird.log" all;
router id 10.126.0.253;
protocol device { }
protocol bfd {
	interface "eth0" { min rx interval 100 ms; min tx interval 100 ms; multiplier 3; };
}
`)
	for _, family := range []string{"ipv4", "ipv6"} {
		fmt.Fprintf(&b, "protocol kernel { merge paths on; %s { import none; export all; }; }\n", family)
	}
	for _, h := range l.Hosts {
		fmt.Fprintf(&b, "protocol bgp %s {\n\tlocal %s as %d;\n\tneighbor %s as %d;\n\tpassive on;\n",
			strings.ReplaceAll(h.Name, "-", "_"), firstOf(l.Router.IPv4, l.Router.IPv6), RouterAS,
			firstOf(h.IPv4, h.IPv6), HostsAS)
		if c.Password != "" {
			fmt.Fprintf(&b, "\tpassword %q;\n", c.Password)
		}
		if c.BFD {
			b.WriteString("\tbfd on;\n")
		}
		b.WriteString("\tipv4 { import all; export none; };\n\tipv6 { import all; export none; };\n}\n")
	}
	return b.String()
}
