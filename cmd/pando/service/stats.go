package service

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/driver/wall"
)

// statsRest is the time between the two readings from which `pando stats` computes the use of
// processors, and between two lists of --watch.
const statsRest = time.Second

// usedNow is one line of `pando stats`.
type usedNow struct {
	pando.InstanceUsage
	CPUs *float64 `json:"cpus"` // processors in use since the reading before; null: unknown
}

// inUse returns the processors in use, for a list.
func (u usedNow) inUse() string {
	if u.CPUs == nil {
		return "-"
	}
	return strconv.FormatFloat(*u.CPUs, 'f', 2, 64)
}

// Stats returns `pando stats`.
func Stats(o *console.Console) *cobra.Command {
	var watch bool
	c := o.OfService(&cobra.Command{
		Use: "stats [SERVICE]", Short: "show the use of cpu, memory and connections",
		Long: "Show the use of each instance: processors over the last second (1.00 is one),\n" +
			"memory with its limit, processes and threads, connections to a VIP, age, and failures\n" +
			"of its service since the newest deploy. A host is asked once for all of its instances.\n" +
			"The health and the newest answers of an instance that failed a probe follow. An overloaded\n" +
			"one works and answers late: it gets a quarter of its new flows, and stays.",
		Example: "  pando stats\n  pando stats website --watch\n  pando stats -o json",
	}, cobra.MaximumNArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		before, err := o.Client.Stats(ctx, key)
		if err != nil {
			return err
		}
		for {
			if err := pando.Sleep(ctx, wall.Clock{}, statsRest); err != nil {
				return err
			}
			now, err := o.Client.Stats(ctx, key)
			if err != nil {
				return console.WithoutEnd(ctx, err)
			}
			if watch && cli.IsTerminal(o.Out.Stdout) {
				fmt.Fprint(o.Out.Stdout, "\x1b[H\x1b[2J")
			}
			all := rates(before, now)
			err = o.Out.Show(all, func(w io.Writer) { stats(w, all, time.Now()) })
			if err != nil || !watch {
				return err
			}
			before = now
		}
	})
	c.Flags().BoolVarP(&watch, "watch", "w", false, "print the list again every second")
	return o.Out.Flag(c)
}

// rates computes the processors in use between two readings.
func rates(before, now []pando.InstanceUsage) []usedNow {
	was := map[pando.InstanceID]pando.InstanceUsage{}
	for _, u := range before {
		was[u.Instance] = u
	}
	out := make([]usedNow, len(now))
	for n, u := range now {
		out[n].InstanceUsage = u
		old, known := was[u.Instance]
		took := u.At.Sub(old.At).Seconds()
		measured := u.PIDs != nil || u.MemoryBytes != nil || u.CPUSeconds > 0 || old.CPUSeconds > 0
		if known && measured && old.Missing == "" && u.Missing == "" && took > 0 {
			cpus := max(0, (u.CPUSeconds-old.CPUSeconds)/took)
			out[n].CPUs = &cpus
		}
	}
	return out
}

func stats(w io.Writer, all []usedNow, now time.Time) {
	if len(all) == 0 {
		fmt.Fprintln(w, "no instances")
		return
	}
	rows := []string{console.Row("INSTANCE", "HOST", "CPU", "MEMORY", "PIDS", "CONNS", "AGE", "FAILS")}
	for _, u := range all {
		age := "-"
		if !u.Born.IsZero() {
			age = console.Brief(now.Sub(u.Born))
		}
		if u.Missing != "" {
			rows = append(rows, console.Row(u.Instance, u.Host, "-", "-", "-", "-", age, u.Missing))
			continue
		}
		cpu := u.inUse()
		if u.Limits.CPUs > 0 {
			cpu += "/" + strconv.FormatFloat(u.Limits.CPUs, 'g', 3, 64)
		}
		memory, pids := "-", "-" // not measured
		if u.MemoryBytes != nil {
			memory = console.Bytes(*u.MemoryBytes)
		}
		if u.PIDs != nil {
			pids = strconv.FormatInt(*u.PIDs, 10)
		}
		if u.Limits.MemoryBytes > 0 {
			memory += "/" + console.Bytes(u.Limits.MemoryBytes)
		}
		rows = append(rows, console.Row(u.Instance, u.Host, cpu, memory, pids, u.Connections, age, u.Failures))
	}
	cli.Columns(w, rows...)
	kept(w, all, now)
	unanswered(w, all)
	for _, u := range all {
		if len(u.Metrics) > 0 {
			fmt.Fprintf(w, "%s reports%s\n", cli.Clean(string(u.Instance)), inputs(u.Metrics))
		}
	}
}

// kept prints the services whose newest instances have few of the connections.
func kept(w io.Writer, all []usedNow, now time.Time) {
	of := map[pando.ServiceKey][]pando.InstanceUsage{}
	for _, u := range all {
		of[u.Service] = append(of[u.Service], u.InstanceUsage)
	}
	for _, s := range slices.SortedFunc(maps.Keys(of), pando.ServiceKey.Compare) {
		if why := pando.Kept(of[s], pando.ByNothing, now); why != "" {
			fmt.Fprintf(w, "%s: %s\n", cli.Clean(s.String()), why)
		}
	}
}

// unanswered prints the newest answers of the instances that are not well now: one whose newest
// probe succeeded has its troubles behind it.
func unanswered(w io.Writer, all []usedNow) {
	for _, u := range all {
		bad := func(a pando.ProbeAnswer) bool { return a.Error != "" }
		newest := len(u.Answers) - 1
		past := newest >= 0 && !bad(u.Answers[newest]) &&
			(u.Health == "" || u.Health == pando.HealthReady)
		if u.Health == pando.HealthStarting || past || !slices.ContainsFunc(u.Answers, bad) {
			continue
		}
		fmt.Fprintln(w, cli.Clean(fmt.Sprintf("%s is %s", u.Instance, u.Health)))
		for _, a := range u.Answers {
			fmt.Fprintln(w, cli.Clean(fmt.Sprintf("  %s %s", a.At.Local().Format("15:04:05"),
				cmp.Or(a.Error, "answers its probe "+string(a.Probe)))))
		}
	}
}
