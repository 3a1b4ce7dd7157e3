package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/network/bgp"
)

// announceBGP is the value of --announce for routers.
const announceBGP = "bgp"

// passwordMax is the longest password that the kernel takes (TCP_MD5SIG).
const passwordMax = 80

// routing has the flags of --announce bgp.
type routing struct {
	AS       string   // of this host
	Routers  []string // ADDRESS=AS
	Password string   // a file
	Hold     time.Duration
	BFD      time.Duration
}

func (r *routing) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&r.AS, "bgp-as", "64512", "with --announce bgp: autonomous system of this host")
	f.StringSliceVar(&r.Routers, "bgp-router", nil, "with --announce bgp: routers, as ADDRESS=AS")
	f.StringVar(&r.Password, "bgp-password-file", "", "file with the password of the sessions")
	cli.DurationVar(f, &r.Hold, "bgp-hold", bgp.HoldMin,
		"a router drops the routes of a silent host after this")
	cli.DurationVar(f, &r.BFD, "bgp-bfd", 0, "interval of BFD, such as 100ms (0 = none)")
}

// args returns the flags that pass the settings to another role.
func (r routing) args() []string {
	out := []string{"--bgp-as", r.AS, "--bgp-password-file", r.Password,
		"--bgp-hold", r.Hold.String(), "--bgp-bfd", r.BFD.String()}
	for _, text := range r.Routers {
		out = append(out, "--bgp-router", text)
	}
	return out
}

// settings returns the flags by name.
func (r routing) settings() map[string]string {
	return map[string]string{
		"bgp-as": r.AS, "bgp-router": strings.Join(r.Routers, ","), "bgp-password-file": r.Password,
		"bgp-hold": r.Hold.String(), "bgp-bfd": r.BFD.String(),
	}
}

// check returns nil if this host can speak with its routers.
func (r *routing) check(p place) error {
	if len(r.Routers) == 0 {
		return fmt.Errorf("%w: --announce bgp: which router? Give --bgp-router ADDRESS=AS, such as "+
			"192.0.2.1=64500", pando.ErrInvalid)
	}
	if r.Password != "" {
		abs, err := filepath.Abs(r.Password)
		if err != nil {
			return fmt.Errorf("find --bgp-password-file: %w", err)
		}
		r.Password = abs
	}
	if r.Hold < bgp.HoldMin || r.Hold > 18*time.Hour || r.Hold%time.Second != 0 {
		return fmt.Errorf("%w: --bgp-hold %s: want whole seconds from %s on", pando.ErrInvalid, r.Hold,
			bgp.HoldMin)
	}
	if r.BFD != 0 && (r.BFD < 10*time.Millisecond || r.BFD > time.Minute) {
		return fmt.Errorf("%w: --bgp-bfd %s: want 10ms to 1m, or 0 for none", pando.ErrInvalid, r.BFD)
	}
	_, err := r.config(p)
	return err
}

// config returns the settings of the speaker.
func (r routing) config(p place) (c bgp.Config, err error) {
	if c.AS, err = pando.ParseAS(r.AS); err != nil {
		return c, fmt.Errorf("--bgp-as: %w", err)
	}
	seen := map[netip.Addr]bool{}
	for _, text := range r.Routers {
		is, err := pando.ParseRouter(text)
		if err != nil {
			return c, fmt.Errorf("--bgp-router: %w", err)
		}
		if seen[is.Address] {
			return c, fmt.Errorf("%w: --bgp-router names %s twice; give each router once",
				pando.ErrInvalid, is.Address)
		}
		seen[is.Address] = true
		c.Routers = append(c.Routers, is)
	}
	if c.Password, err = passwordIn(r.Password); err != nil {
		return c, fmt.Errorf("--bgp-password-file: %w", err)
	}
	for _, text := range []string{p.Address, p.address6} {
		switch a, err := netip.ParseAddr(text); {
		case err != nil:
		case a.Is4():
			c.Next4 = a
		default:
			c.Next6 = a
		}
	}
	if !c.Next4.IsValid() && !c.Next6.IsValid() {
		return c, fmt.Errorf("%w: --announce bgp: this host has no address; give --address",
			pando.ErrInvalid)
	}
	own, _ := pando.InstanceRange(p.Slot)
	c.ID = own.Addr() // no other host has it
	c.Hold, c.BFD = r.Hold, r.BFD
	return c, nil
}

// passwordIn reads the password in a file that only its owner may read.
func passwordIn(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	st, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%w: there is no file %s; write the password of the sessions there",
			pando.ErrInvalid, file)
	case err != nil:
		return "", err
	case st.IsDir():
		return "", fmt.Errorf("%w: %s is a folder; name the file with the password", pando.ErrInvalid,
			file)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("%w: others may read %s; `chmod 600 %[2]s`", pando.ErrInvalid, file)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	if len(text) == 0 {
		return "", fmt.Errorf("%w: the file %s is empty; write the password of the sessions there",
			pando.ErrInvalid, file)
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" || len(password) > passwordMax || strings.ContainsAny(password, "\r\n\x00") {
		return "", fmt.Errorf("%w: %s: want one line of 1 to %d bytes", pando.ErrInvalid, file,
			passwordMax)
	}
	return password, nil
}

// routers returns the speaker of --announce bgp, or nil without it.
func routers(p place, log *slog.Logger) (pando.Routers, error) {
	if p.Announce != announceBGP {
		return nil, nil
	}
	c, err := p.BGP.config(p)
	if err != nil {
		return nil, err
	}
	c.Clock, c.Log = clock.Clock{}, log
	s, err := bgp.New(c)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// downFile exists while `pando down` ends the agent. No agent follows, so the routes go with it.
func (f folders) downFile() string { return filepath.Join(f.Run, "down") }

// endsFor returns whether `pando down` ends this agent. It removes the file of an earlier one.
func endsFor(p place, log *slog.Logger) func() bool {
	if err := os.Remove(p.downFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("cannot remove the mark of `pando down`", "error", err)
	}
	return func() bool {
		_, err := os.Stat(p.downFile())
		return err == nil
	}
}

// markDown writes the file, unless the agent's folder is gone.
func markDown(p place) error {
	err := os.WriteFile(p.downFile(), nil, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
