package service

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/driver/wall"
)

// decisionsShown is the number of decisions below the table of `pando top`.
const decisionsShown = 5

// Top returns `pando top`.
func Top(o *console.Console) *cobra.Command {
	once := false
	c := o.OfService(&cobra.Command{
		Use: "top SERVICE", Short: "show scores, use and flows of a service, live",
		Long: "Show the score of each instance (lower is better), the processors in use, its shares\n" +
			"of processor and memory, the time that its processor limit held it back, the queue of\n" +
			"its link, its connections, and its new flows per second. An instance marked * gets no\n" +
			"new flows. The last decisions stand below. Ctrl-C ends it.",
		Example: "  pando top website\n  pando top website --once -o json",
	}, cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		before, err := o.Client.Stats(ctx, key)
		if err != nil {
			return err
		}
		for {
			if err := pando.Sleep(ctx, wall.Clock{}, statsRest); err != nil {
				return err
			}
			v, err := sampleAll(ctx, o, key, before)
			if err != nil {
				return console.WithoutEnd(ctx, err)
			}
			if !once && cli.IsTerminal(o.Out.Stdout) {
				fmt.Fprint(o.Out.Stdout, "\x1b[H\x1b[2J")
			}
			if err := o.Out.Show(v, func(w io.Writer) { top(w, v) }); err != nil || once {
				return err
			}
			before = v.usage
		}
	})
	c.Flags().BoolVar(&once, "once", false, "print one table and end")
	return o.Out.Flag(c)
}

// topView is one page of `pando top`.
type topView struct {
	Balance   pando.Balance   `json:"balance"`
	Scale     pando.Scale     `json:"scale"`
	Instances []topRow        `json:"instances"`
	Decisions []pando.Because `json:"decisions"`
	usage     []pando.InstanceUsage
	now       time.Time
}

// topRow is one instance of `pando top`.
type topRow struct {
	usedNow
	Weight  int      `json:"weight"`
	Rate    *float64 `json:"flows_per_second"` // null: unknown
	Dropped uint64   `json:"dropped"`          // packets on the way to it, since the former reading
}

// look reads the newest numbers of a service.
func sampleAll(
	ctx context.Context, o *console.Console, key pando.ServiceKey, before []pando.InstanceUsage,
) (v topView, err error) {
	if v.usage, err = o.Client.Stats(ctx, key); err != nil {
		return v, err
	}
	st, err := o.Client.Service(ctx, key)
	if err != nil {
		return v, err
	}
	if v.Decisions, err = o.Client.Why(ctx, key, decisionsShown); err != nil {
		return v, err
	}
	v.Scale = st.Scale
	if st.Spec != nil {
		v.Balance = st.Spec.Balance.WithDefaults()
	}
	weights := map[pando.InstanceID]int{}
	for _, i := range st.Instances {
		if i.Phase.TakesFlows() {
			weights[i.ID] = i.Weight
		}
	}
	v.Instances, v.now = topRows(before, v.usage, weights), time.Now()
	return v, nil
}

// topRows computes the new flows per second between two readings.
func topRows(
	before, now []pando.InstanceUsage, weights map[pando.InstanceID]int,
) []topRow {
	was := map[pando.InstanceID]pando.InstanceUsage{}
	for _, u := range before {
		was[u.Instance] = u
	}
	out := make([]topRow, len(now))
	for n, u := range rates(before, now) {
		out[n] = topRow{usedNow: u, Weight: weights[u.Instance]}
		old, known := was[u.Instance]
		took := u.At.Sub(old.At).Seconds()
		if known && old.Missing == "" && u.Missing == "" && took > 0 && u.Flows >= old.Flows {
			rate := float64(u.Flows-old.Flows) / took
			out[n].Rate = &rate
		}
		if old.Queue != nil && u.Queue != nil && u.Queue.Drops > old.Queue.Drops {
			out[n].Dropped = u.Queue.Drops - old.Queue.Drops
		}
	}
	return out
}

// top prints a page.
func top(w io.Writer, v topView) {
	fmt.Fprintf(w, "balance by %s, scale by %s\n", v.Balance.WithDefaults().By, scaledBy(v.Scale))
	rows := []string{console.Row("INSTANCE", "HOST", "PHASE", "WEIGHT", "SCORE", "CPUS", "CPU", "MEMORY",
		"HELD", "LOSS", "RTT", "QUEUE", "CONNS", "NEW/S")}
	for _, r := range v.Instances {
		if r.Missing != "" {
			rows = append(rows, console.Row(r.Instance, r.Host, r.Phase, "-", "-", "-", "-", "-", "-", "-",
				"-", "-", "-", r.Missing))
			continue
		}
		rate := "-"
		if r.Rate != nil {
			rate = strconv.FormatFloat(*r.Rate, 'f', 0, 64)
		}
		score, cpu, memory, held, loss, rtt := "-", "-", "-", "-", "-", "-"
		if r.Score != nil {
			score = strconv.FormatFloat(r.Score.Value, 'f', 3, 64)
			if r.Score.Excluded {
				score += "*"
			}
		}
		if m := r.Meter; m != nil {
			cpu, memory, held = percent(m.CPU), percent(m.Memory), percent(m.Pressure)
			if m.RTTSeconds > 0 {
				loss = strconv.FormatFloat(100*m.Loss, 'f', 1, 64) + "%"
				rtt = strconv.FormatFloat(1000*m.RTTSeconds, 'f', 2, 64) + "ms"
			}
		}
		rows = append(rows, console.Row(r.Instance, r.Host, r.Phase, r.Weight, score, r.inUse(), cpu, memory,
			held, loss, rtt, queued(r), r.Connections, rate))
	}
	cli.Columns(w, rows...)
	if why := pando.Kept(v.usage, v.Scale.By, v.now); why != "" {
		fmt.Fprintln(w, why)
	}
	if len(v.Decisions) > 0 {
		fmt.Fprintln(w)
	}
	for _, b := range v.Decisions { // a live page has a line for each; `pando why` has the steps
		briefly(w, b)
	}
}

// queued describes the queue of an instance's link: the waiting bytes, and the dropped packets
// since the former page.
func queued(r topRow) string {
	if r.Queue == nil {
		return "-"
	}
	text := console.Bytes(int64(r.Queue.BacklogBytes))
	if r.Dropped > 0 {
		text += fmt.Sprintf(", %d dropped", r.Dropped)
	}
	return text
}

func percent(share float64) string { return strconv.FormatFloat(100*share, 'f', 0, 64) + "%" }

// scaledBy names the source of a service's asks.
func scaledBy(s pando.Scale) string {
	switch s.By {
	case pando.ByNothing:
		return "its application"
	case pando.ByScores:
		return fmt.Sprintf("score (up %g, down %g)", s.Up, s.Down)
	}
	return fmt.Sprintf("%s (target %g)", cli.Clean(string(s.By)), s.Target)
}
