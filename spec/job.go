package spec

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"pando.run/pando"
)

// Schedule is a time table in the words of cron. It reads no clock.
type Schedule struct{ of *cron.SpecSchedule }

var cronParser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

const scheduleWant = "five words of cron: minute, hour, day of the month, month, day of the " +
	`week, such as "*/5 * * * *"`

// ReadSchedule reads five words of cron and the zone in which they hold ("": UTC).
func ReadSchedule(text, zone string) (Schedule, error) {
	words := strings.Fields(text)
	if len(words) != 5 || strings.Contains(words[0], "=") {
		return Schedule{}, fmt.Errorf("%w: schedule %q: want %s", pando.ErrInvalid, text, scheduleWant)
	}
	location, err := readZone(zone)
	if err != nil {
		return Schedule{}, err
	}
	table, err := cronParser.Parse(strings.Join(words, " "))
	if err != nil {
		return Schedule{}, fmt.Errorf("%w: schedule %q: %w: want %s", pando.ErrInvalid, text, err,
			scheduleWant)
	}
	s := Schedule{table.(*cron.SpecSchedule)}
	s.of.Location = location
	if s.After(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return Schedule{}, fmt.Errorf("%w: schedule %q: never comes", pando.ErrInvalid, text)
	}
	return s, nil
}

// readZone returns a time zone by its name.
func readZone(zone string) (*time.Location, error) {
	if zone == "Local" || strings.HasPrefix(zone, "/") || strings.Contains(zone, "..") {
		return nil, fmt.Errorf("%w: job.zone: %q: want UTC or a name such as Europe/Vienna",
			pando.ErrInvalid, zone)
	}
	location, err := time.LoadLocation(zone)
	if err != nil {
		return nil, fmt.Errorf("%w: job.zone: %q is unknown here: want UTC or a name such as "+
			"Europe/Vienna; the package tzdata has the names", pando.ErrInvalid, zone)
	}
	return location, nil
}

// After returns the first time of the schedule after t, or zero if there is none in five years.
func (s Schedule) After(t time.Time) time.Time {
	if s.of == nil {
		return time.Time{}
	}
	next := s.of.Next(t)
	if next.IsZero() {
		return next
	}
	return next.UTC()
}

var scheduleKind = textKind(`^[^\x00=]+$`, scheduleWant, stringOnly, func(s string) (any, error) {
	if _, err := ReadSchedule(s, ""); err != nil {
		return s, errors.New(strings.TrimPrefix(err.Error(), "invalid: schedule "))
	}
	return s, nil
})

var zoneKind = textKind(`^[A-Za-z][A-Za-z0-9_+/-]{0,63}$`, "UTC or a zone such as Europe/Vienna",
	stringOnly, func(s string) (any, error) {
		_, err := readZone(s)
		return s, err
	})

var jobFields = []field{
	{name: "parallel", doc: "Instances of a run that must end with 0.", def: "1", example: "4",
		kind: integerKind(1, pando.RunPartsMax),
		set:  func(s *pando.Spec, v any) { s.Job.Parallel = v.(int) },
		get:  func(s pando.Spec) any { return s.Job.Parallel }},
	{name: "retries", doc: "Instances that may take the place of failed ones, in a run.", def: "0",
		example: "3", kind: integerKind(0, pando.RunPartsMax),
		set: func(s *pando.Spec, v any) { s.Job.Retries = v.(int) },
		get: func(s pando.Spec) any { return s.Job.Retries }},
	{name: "deadline", doc: "Time for a whole run. Later it has failed, and its instances end.",
		def: "no limit", example: "10m", kind: durationKind,
		set: func(s *pando.Spec, v any) { s.Job.DeadlineSeconds = v.(float64) },
		get: func(s pando.Spec) any { return duration(s.Job.DeadlineSeconds) }},
	{name: "zone", doc: "Time zone of `schedule`.", def: "UTC", example: "Europe/Vienna",
		kind: zoneKind,
		set:  func(s *pando.Spec, v any) { s.Job.Zone = v.(string) },
		get:  func(s pando.Spec) any { return s.Job.Zone }},
	{name: "overlap", doc: "Rule for a scheduled run while an older one is in progress. forbid: it " +
		"is missed and counted. allow: both run. replace: the older one ends.", def: "forbid",
		example: "replace", kind: enumKind(string(pando.OverlapForbid), string(pando.OverlapAllow),
			string(pando.OverlapReplace)),
		set: func(s *pando.Spec, v any) { s.Job.Overlap = pando.Overlap(v.(string)) },
		get: func(s pando.Spec) any { return string(s.Job.Overlap) }},
}

// jobConflicts returns the keys of a job that contradict each other.
func jobConflicts(s pando.Spec) (out []conflict) {
	if s.IsJob() && s.Job.Schedule == "" && (s.Job.Zone != "" || s.Job.Overlap != "") {
		out = append(out, conflict{"job", "zone and overlap belong to a schedule"})
	}
	return out
}

// job checks the words of a job.
func (c *checks) job(s pando.Spec) {
	for _, why := range jobConflicts(s) {
		c.that(false, "%s: %s", why.path, why.text)
	}
	if !s.IsJob() {
		return
	}
	for where, n := range map[string]int{
		"job.parallel": s.Job.Parallel, "job.retries": s.Job.Retries,
	} {
		c.that(n >= 0 && n <= pando.RunPartsMax, "%s: %d: want 0 to %d", where, n, pando.RunPartsMax)
	}
	c.seconds("job.deadline_seconds", s.Job.DeadlineSeconds)
	word(c, "job.overlap", s.Job.Overlap, "", pando.OverlapForbid, pando.OverlapAllow,
		pando.OverlapReplace)
	if s.Job.Schedule != "" {
		_, err := ReadSchedule(s.Job.Schedule, s.Job.Zone)
		c.also(err)
	}
}
