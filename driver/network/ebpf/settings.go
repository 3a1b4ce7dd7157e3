package ebpf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

const sysctls = "/proc/sys/net/"

// setting is a network option of the kernel with its desired value.
type setting struct{ name, value string }

// forward makes the host forward packets between its links. It records the former settings in a
// file. A host that forwards IPv6 ignores router advertisements, which may give it its own
// addresses, unless accept_ra is 2.
func forward(six bool, uplinks []string, former string) error {
	// Redirects are off: a client would use the shorter way to another host even after that host's
	// end.
	settings := []setting{{"ipv4/ip_forward", "1"}, {"ipv4/conf/all/send_redirects", "0"},
		{"ipv4/conf/all/rp_filter", "0"}, {"ipv4/conf/" + Device + "/rp_filter", "0"}}
	for _, name := range uplinks {
		settings = append(settings, setting{"ipv4/conf/" + name + "/send_redirects", "0"})
	}
	if six {
		for _, name := range uplinks {
			if now, err := os.ReadFile(sysctls + "ipv6/conf/" + name + "/accept_ra"); err == nil &&
				now[0] == '1' {
				settings = append(settings, setting{"ipv6/conf/" + name + "/accept_ra", "2"})
			}
		}
		settings = append(settings, setting{"ipv6/conf/" + Device + "/addr_gen_mode", "1"},
			setting{"ipv6/conf/all/forwarding", "1"})
	}
	if err := note(former, settings); err != nil {
		return err
	}
	for _, s := range settings {
		if err := os.WriteFile(sysctls+s.name, []byte(s.value), 0); err != nil {
			return fmt.Errorf("set net/%s to %s: %w", s.name, s.value, err)
		}
	}
	return nil
}

// changed is a setting's former value, and the value that Pando set.
type changed struct {
	Was string `json:"was"`
	Set string `json:"set"`
}

// note adds the settings that will change to a file, unless file is "". Earlier entries have the
// older values and stay.
func note(file string, settings []setting) error {
	if file == "" {
		return nil
	}
	all, err := noted(file)
	if err != nil {
		return err
	}
	before := len(all)
	for _, s := range settings {
		was, err := os.ReadFile(sysctls + s.name)
		value := strings.TrimSpace(string(was))
		if _, known := all[s.name]; err == nil && !known && value != s.value {
			all[s.name] = changed{value, s.value}
		}
	}
	if len(all) == before {
		return nil
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return fmt.Errorf("note how the kernel's settings were: %w", err)
	}
	return os.Rename(file+".new", file)
}

// noted reads the file that note writes. A damaged file counts as empty: lost settings are no
// reason to refuse service.
func noted(file string) (map[string]changed, error) {
	all := map[string]changed{}
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read how the kernel's settings were: %w", err)
	}
	if json.Unmarshal(text, &all) != nil {
		all = map[string]changed{}
	}
	return all, nil
}

// Restore resets the kernel's settings to the values in a file. It skips a setting that another
// program has changed since.
func Restore(file string) error {
	all, err := noted(file)
	if err != nil {
		return err
	}
	var errs []error
	for name, c := range all {
		now, err := os.ReadFile(sysctls + name)
		if err != nil || strings.TrimSpace(string(now)) != c.Set {
			continue // its interface is gone, or another program changed it
		}
		if err := os.WriteFile(sysctls+name, []byte(c.Was), 0); err != nil {
			errs = append(errs, fmt.Errorf("set net/%s back to %s: %w", name, c.Was, err))
		}
	}
	return errors.Join(errs...)
}
