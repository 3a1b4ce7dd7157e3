package console

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
)

// RunOf returns the part of an instance in a run, for the lists of instances.
func RunOf(i pando.InstanceStatus) string {
	if i.Run == nil {
		return ""
	}
	return fmt.Sprintf("run %d", i.Run.Number)
}

// PhaseOf returns the phase of an instance in a list. An instance of a run has no readiness.
func PhaseOf(i pando.InstanceStatus) string {
	if i.Run != nil && i.Phase == pando.PhaseStarting {
		return "running"
	}
	if i.Run != nil && slices.Contains([]pando.Phase{pando.PhaseFailed, pando.PhaseMerged}, i.Phase) {
		return "ended"
	}
	return string(i.Phase)
}

// RunTable prints a line per run, then the schedule.
func RunTable(w io.Writer, b *pando.RunBook, now time.Time) {
	rows := []string{Row("RUN", "REV", "STATE", "BEGAN", "TOOK", "DONE", "FAILED", "BY", "COMMAND",
		"REASON")}
	for _, r := range b.Runs {
		end := now
		if !r.Active() {
			end = r.Ended
		}
		command := ""
		for _, word := range r.Command {
			if strings.ContainsAny(word, " \t\n'\"") || word == "" {
				word = strconv.Quote(word)
			}
			command = strings.TrimSpace(command + " " + word)
		}
		rows = append(rows, Row(r.Number, r.Revision, r.State, r.Began.Local().Format(time.DateTime),
			Brief(end.Sub(r.Began)), fmt.Sprintf("%d of %d", r.Done, r.Want), r.Failed, r.By,
			command, r.Reason))
	}
	if len(b.Runs) == 0 {
		fmt.Fprintln(w, "no runs")
	} else {
		cli.Columns(w, rows...)
	}
	schedule(w, b)
}

// schedule prints the next time of a job and the missed ones.
func schedule(w io.Writer, b *pando.RunBook) {
	if b == nil || b.Next.IsZero() {
		return
	}
	at := b.Next
	if zone, err := time.LoadLocation(b.Zone); err == nil {
		at = at.In(zone)
	}
	fmt.Fprintf(w, "the next run is due at %s (%s)", at.Format("2006-01-02 15:04 MST"),
		cli.Clean(b.Schedule))
	if b.Missed > 0 {
		fmt.Fprintf(w, "; %s", cli.Count(b.Missed, "missed run"))
	}
	fmt.Fprintln(w)
}
