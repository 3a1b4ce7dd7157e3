package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Fault is a disturbance of a lab that is in force.
type Fault struct {
	Kind  string  `json:"kind"` // cut, block, loss, slow or pause
	Host  string  `json:"host"`
	Peer  string  `json:"peer,omitempty"`            // of a cut or a block
	Share float64 `json:"share,omitempty"`           // of lost frames, 0 to 1
	Rate  uint64  `json:"bits_per_second,omitempty"` // of a slow link
}

// String returns the fault in the words of a scenario.
func (f Fault) String() string {
	switch f.Kind {
	case "cut", "block":
		return f.Kind + " " + f.Host + " " + f.Peer
	case "loss":
		return fmt.Sprintf("loss %s %g%%", f.Host, f.Share*100)
	case "slow":
		return fmt.Sprintf("slow %s %s", f.Host, rateText(f.Rate))
	}
	return f.Kind + " " + f.Host
}

// Cut drops every frame between two members, in both directions, until Heal. Both stay in touch
// with all others.
func (l *Lab) Cut(a, b string) error {
	from, to, err := l.pair(a, b)
	if err != nil {
		return err
	}
	f := Fault{Kind: "cut", Host: a, Peer: b}
	return l.drop(f, append(port(expr.MetaKeyIIFNAME, from), port(expr.MetaKeyOIFNAME, to)...),
		append(port(expr.MetaKeyIIFNAME, to), port(expr.MetaKeyOIFNAME, from)...))
}

// Block drops every frame from one member to another, until Heal. Frames the other way arrive.
func (l *Lab) Block(a, b string) error {
	from, to, err := l.pair(a, b)
	if err != nil {
		return err
	}
	return l.drop(Fault{Kind: "block", Host: a, Peer: b},
		append(port(expr.MetaKeyIIFNAME, from), port(expr.MetaKeyOIFNAME, to)...))
}

func (l *Lab) pair(a, b string) (from, to Host, err error) {
	if from, err = l.member(a); err != nil {
		return from, to, err
	}
	if to, err = l.member(b); err != nil {
		return from, to, err
	}
	if a == b {
		return from, to, fmt.Errorf("cut %s from itself: %w; name two members", a, fs.ErrInvalid)
	}
	return from, to, nil
}

// Lose drops a share of the frames from and to a member at random, until Heal.
func (l *Lab) Lose(name string, share float64) error {
	h, err := l.member(name)
	if err != nil {
		return err
	}
	if !(share > 0 && share <= 1) {
		return fmt.Errorf("lose %g %% of %s's frames: %w; give more than 0 %% and at most 100 %%",
			share*100, name, fs.ErrInvalid)
	}
	dice := randomly(share)
	return l.drop(Fault{Kind: "loss", Host: name, Share: share},
		append(port(expr.MetaKeyIIFNAME, h), dice...),
		append(port(expr.MetaKeyOIFNAME, h), dice...))
}

// Slow limits the link of a member to a rate in bits per second, in each direction, until Heal.
func (l *Lab) Slow(name string, rate uint64) error {
	h, err := l.member(name)
	if err != nil {
		return err
	}
	if rate < rateMin {
		return fmt.Errorf("slow %s to %s: %w; the least is %s", name, rateText(rate), fs.ErrInvalid,
			rateText(rateMin))
	}
	return l.ends(h, func(in *netlink.Handle, link netlink.Link) error {
		bytes := rate / 8
		burst := max(bytes/100, burstMinBytes)
		return in.QdiscReplace(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{
				LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT,
			},
			Rate: bytes, Buffer: netlink.Xmittime(bytes, uint32(burst)),
			Limit: uint32(burst + max(bytes/20, queueMinBytes)),
		})
	})
}

const (
	rateMin       = 8_000       // bits per second: below it a frame takes more than a second
	burstMinBytes = 64<<10 + 64 // a whole GSO frame
	queueMinBytes = 256 << 10
)

// Heal ends the cuts, losses, rates and pauses of these members, or of all if none is named.
func (l *Lab) Heal(names ...string) error {
	for _, name := range names {
		if _, err := l.member(name); err != nil {
			return err
		}
	}
	hurt := func(f Fault) bool {
		return len(names) == 0 || slices.Contains(names, f.Host) || slices.Contains(names, f.Peer)
	}
	errs := []error{l.undrop(hurt)}
	for _, h := range l.members() {
		if !hurt(Fault{Host: h.Name}) || !h.alive() {
			continue
		}
		errs = append(errs, l.Resume(h.Name),
			l.ends(h, func(in *netlink.Handle, link netlink.Link) error {
				return forEachRate(in, link, in.QdiscDel)
			}))
	}
	return errors.Join(errs...)
}

// Faults returns the disturbances that are in force. The kernel is the record.
func (l *Lab) Faults() ([]Fault, error) {
	out, err := l.dropped()
	for _, h := range l.members() {
		if !h.alive() {
			continue
		}
		if l.paused(h) {
			out = append(out, Fault{Kind: "pause", Host: h.Name})
		}
		err = errors.Join(err, l.atSwitch(h, func(in *netlink.Handle, link netlink.Link) error {
			return forEachRate(in, link, func(q netlink.Qdisc) error {
				out = append(out, Fault{Kind: "slow", Host: h.Name, Rate: q.(*netlink.Tbf).Rate * 8})
				return nil
			})
		}))
	}
	return out, err
}

// forEachRate calls f with the limit of a link's rate, if there is one.
func forEachRate(in *netlink.Handle, link netlink.Link, f func(netlink.Qdisc) error) error {
	all, err := in.QdiscList(link)
	if err != nil {
		return err
	}
	for _, q := range all {
		if _, ok := q.(*netlink.Tbf); ok {
			err = errors.Join(err, f(q))
		}
	}
	return err
}

// ends calls f with both ends of a member's cable.
func (l *Lab) ends(h Host, f func(*netlink.Handle, netlink.Link) error) error {
	in, err := h.inside()
	if err != nil {
		return err
	}
	defer in.Close()
	link, err := in.LinkByName("eth0")
	if err == nil {
		err = f(in, link)
	}
	if err != nil {
		return fmt.Errorf("eth0 of lab host %s: %w", h.Name, err)
	}
	return l.atSwitch(h, f)
}

// atSwitch calls f with the switch's end of a member's cable.
func (l *Lab) atSwitch(h Host, f func(*netlink.Handle, netlink.Link) error) error {
	sw, err := l.Switch.inside()
	if err != nil {
		return err
	}
	defer sw.Close()
	link, err := sw.LinkByName(h.Port)
	if err == nil {
		err = f(sw, link)
	}
	if err != nil {
		return fmt.Errorf("port of lab host %s: %w", h.Name, err)
	}
	return nil
}

// The switch drops frames in this chain. The text of a rule is its fault.
const faultTable = "faults"

func (l *Lab) rules() (*nftables.Conn, *nftables.Chain, error) {
	ns, err := netns.GetFromPid(l.Switch.Pid)
	if err != nil {
		return nil, nil, fmt.Errorf("network namespace of the lab's switch: %w", err)
	}
	defer ns.Close()
	c, err := nftables.New(nftables.WithNetNSFd(int(ns)), nftables.AsLasting())
	if err != nil {
		return nil, nil, fmt.Errorf("rules of the lab's switch: %w", err)
	}
	table := c.AddTable(&nftables.Table{Name: faultTable, Family: nftables.TableFamilyBridge})
	chain := c.AddChain(&nftables.Chain{
		Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	if err := c.Flush(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("rules of the lab's switch: %w", err), c.CloseLasting())
	}
	return c, chain, nil
}

// drop adds a rule for each of the matches.
func (l *Lab) drop(f Fault, matches ...[]expr.Any) error {
	if err := l.undrop(func(old Fault) bool { return old.same(f) }); err != nil {
		return err
	}
	c, chain, err := l.rules()
	if err != nil {
		return err
	}
	for _, m := range matches {
		c.AddRule(&nftables.Rule{
			Table: chain.Table, Chain: chain, UserData: []byte(f.String()),
			Exprs: append(m, &expr.Verdict{Kind: expr.VerdictDrop}),
		})
	}
	if err := errors.Join(c.Flush(), c.CloseLasting()); err != nil {
		return fmt.Errorf("%s: %w", f, err)
	}
	return nil
}

// same reports whether one fault replaces the other.
func (f Fault) same(g Fault) bool {
	turned := f.Kind == "cut" && f.Host == g.Peer && f.Peer == g.Host
	return f.Kind == g.Kind && (f.Host == g.Host && f.Peer == g.Peer || turned)
}

// undrop removes the rules of some faults.
func (l *Lab) undrop(which func(Fault) bool) error {
	c, chain, err := l.rules()
	if err != nil {
		return err
	}
	rules, err := c.GetRules(chain.Table, chain)
	for _, r := range rules {
		if f, ok := ruleFault(r); ok && which(f) {
			err = errors.Join(err, c.DelRule(r))
		}
	}
	if err := errors.Join(err, c.Flush(), c.CloseLasting()); err != nil {
		return fmt.Errorf("heal the lab's switch: %w", err)
	}
	return nil
}

func (l *Lab) dropped() ([]Fault, error) {
	c, chain, err := l.rules()
	if err != nil {
		return nil, err
	}
	rules, err := c.GetRules(chain.Table, chain)
	var out []Fault
	for _, r := range rules {
		if f, ok := ruleFault(r); ok && !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out, errors.Join(err, c.CloseLasting())
}

// ruleFault reads the fault from the text of a rule.
func ruleFault(r *nftables.Rule) (Fault, bool) {
	step, err := parseStep(strings.Fields(string(r.UserData)))
	return step.fault(), err == nil
}

// port matches frames by their device: in the bridge's forward chain it is the switch's port.
func port(key expr.MetaKey, h Host) []expr.Any {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, h.Port)
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name},
	}
}

// randomly matches a share of the frames.
func randomly(share float64) []expr.Any {
	const of = 10_000
	limit := uint32(math.Round(share * of))
	return []expr.Any{
		&expr.Numgen{Register: 1, Modulus: of, Type: unix.NFT_NG_RANDOM},
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
		&expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: binaryutil.BigEndian.PutUint32(limit)},
	}
}
