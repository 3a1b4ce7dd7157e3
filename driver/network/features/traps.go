package features

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
)

// Settings of a host, possibly by other programs, that silently drop packets.

const sysctls = "/proc/sys/net/"

func tryForwarding(Config) (string, error) {
	text, err := os.ReadFile(sysctls + "ipv4/ip_forward")
	if err != nil {
		return "", err
	}
	if strings.TrimSpace(string(text)) != "1" {
		return "", fmt.Errorf("net.ipv4.ip_forward is off")
	}
	return "on", nil
}

func tryConntrack(Config) (string, error) {
	var numbers [2]int
	for i, name := range []string{"count", "max"} {
		text, err := os.ReadFile(sysctls + "netfilter/nf_conntrack_" + name)
		if os.IsNotExist(err) {
			return "not in use", nil
		}
		if err == nil {
			numbers[i], err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		if err != nil {
			return "", err
		}
	}
	found := fmt.Sprintf("%d of %d entries", numbers[0], numbers[1])
	if numbers[0]*10 > numbers[1]*9 {
		return "", fmt.Errorf("%s", found)
	}
	return found, nil
}

// tryFirewall looks for a policy that drops forwarded packets, as Docker and most firewalls set it.
// Answers of instances are forwarded; packets to instances are not.
func tryFirewall(Config) (string, error) {
	c, err := nftables.New()
	if err != nil {
		return "", fmt.Errorf("look at nf_tables: %w", err)
	}
	chains, err := c.ListChains()
	if err != nil {
		return "", fmt.Errorf("list the chains of nf_tables: %w", err)
	}
	for _, chain := range chains {
		if chain.Hooknum != nil && *chain.Hooknum == *nftables.ChainHookForward && chain.Policy != nil &&
			*chain.Policy == nftables.ChainPolicyDrop {
			return "", fmt.Errorf("chain %s of table %s drops what none of its rules lets through",
				chain.Name, chain.Table.Name)
		}
	}
	legacy, err := os.ReadFile("/proc/net/ip_tables_names")
	if errors.Is(err, fs.ErrNotExist) ||
		err == nil && !slices.Contains(strings.Fields(string(legacy)), "filter") {
		return "it forwards every packet", nil
	}
	// Only iptables-legacy shows the older tables.
	rules, err := exec.Command("iptables-legacy", "-S", "FORWARD").Output()
	if err == nil && strings.HasPrefix(string(rules), "-P FORWARD DROP") {
		return "", fmt.Errorf("chain FORWARD of iptables-legacy drops what none of its rules lets " +
			"through")
	}
	return "it forwards every packet", nil
}

// tryReversePath looks for a setting of `pando up` that another program has set back. An answer
// comes from a VIP, and the route to the VIPs is pando0. The kernel uses the stricter of the
// device's value and the value of all; 2 accepts any route.
func tryReversePath(Config) (string, error) {
	devices, err := filepath.Glob(sysctls + "ipv4/conf/*/rp_filter")
	if err != nil || len(devices) == 0 {
		return "", fmt.Errorf("read %sipv4/conf: %v", sysctls, err)
	}
	found := "off"
	for _, path := range devices {
		name := filepath.Base(filepath.Dir(path))
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && strings.TrimSpace(string(text)) != "1" ||
			name != "all" && !ours(name) {
			continue // gone since, not strict, or not a device of instances
		}
		if err != nil {
			return "", err
		}
		if _, err := os.Stat(sysctls + "ipv4/conf/pando0"); err == nil {
			return "", fmt.Errorf("net.ipv4.conf.%s.rp_filter is 1 although Pando is up", name)
		}
		found = "strict; `pando up` turns it off"
	}
	return found, nil
}
