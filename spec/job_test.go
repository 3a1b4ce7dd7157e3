package spec

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

func TestAJobIsRead(t *testing.T) {
	const text = "name: nightly\nkind: job\ncommand: ./report\nschedule: \"30 2 * * *\"\n" +
		"job: {parallel: 2, retries: 3, deadline: 10m, zone: Europe/Vienna, overlap: replace}\n"
	all, err := Parse("job.yaml", []byte(text), "/srv")
	if err != nil {
		t.Fatal(err)
	}
	want := pando.Job{Parallel: 2, Retries: 3, DeadlineSeconds: 600, Schedule: "30 2 * * *",
		Zone: "Europe/Vienna", Overlap: pando.OverlapReplace}
	if s := all[0]; !s.IsJob() || s.Job != want {
		t.Errorf("%+v", s.Job)
	}
	s := all[0].WithDefaults()
	if err := Check(s); err != nil {
		t.Error(err)
	}
	again, err := Parse("again.yaml", Format(s), "/srv")
	if err != nil || !reflect.DeepEqual(again[0].WithDefaults(), s) {
		t.Errorf("%v\n%s", err, Format(s))
	}
}

// Each word that contradicts a job is an error with its place.
func TestAJobRefusesWordsOfServices(t *testing.T) {
	for _, c := range [][2]string{
		{"kind: daemon", "x.yaml:3:7: kind: want one of job, stateful"},
		{"schedule: \"0 0 * * *\"", "x.yaml:3:1: schedule: needs `kind: job`"},
		{"job: {retries: 2}", "x.yaml:3:1: job: needs `kind: job`"},
		{"kind: job\nports: [80]", "x.yaml:4:1: ports: a job takes no connections"},
		{"kind: job\nhealth: {ready: tcp 7}", "x.yaml:4:1: health: a job has no probes"},
		{"kind: job\nscale: {warm: 1}", "x.yaml:4:1: scale: a job has `job: {parallel: N}`"},
		{"kind: job\nrestart: always", "x.yaml:4:1: restart: a job has `job: {retries: N}`"},
		{"kind: job\njob: {parallel: 33}", "x.yaml:4:17: job.parallel: 33: want a whole number"},
		{"kind: job\njob: {zone: UTC}", "x.yaml:4:1: job: zone and overlap belong to a schedule"},
		{"kind: job\nschedule: hourly", "schedule: \"hourly\": want five words"},
		{"kind: job\nschedule: 0 0 30 2 *", "never comes"},
		{"kind: job\nschedule: 61 * * * *", "above maximum"},
		{"kind: job\nschedule: \"1 * * * *\"\njob: {zone: Mars/Base}",
			"job.zone: \"Mars/Base\" is unknown"},
	} {
		line, want := c[0], c[1]
		_, err := Parse("x.yaml", []byte("name: x\ncommand: \"true\"\n"+line+"\n"), "/srv")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", line, err, want)
		}
	}
	s := pando.Spec{Name: "x", Command: []string{"true"}, Job: pando.Job{Retries: 1}}
	if err := Check(s); err == nil {
		t.Error("a service has retries")
	}
}

// A schedule holds in its zone, also where a night has no such hour or has it twice.
func TestAScheduleKnowsItsZone(t *testing.T) {
	s, err := ReadSchedule("30 2 * * *", "Europe/Vienna")
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC)
	var got []string
	for range 3 {
		at = s.After(at)
		got = append(got, at.Format("02 15:04"))
	}
	// On the 29th the clock goes from 2:00 to 3:00, when it runs.
	if want := []string{"29 01:00", "30 00:30", "31 00:30"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if _, err := ReadSchedule("TZ=UTC * * * *", ""); err == nil {
		t.Error("a zone is in the words")
	}
	for _, zone := range []string{"Local", "/etc/passwd", "../../etc/passwd"} {
		if _, err := ReadSchedule("* * * * *", zone); err == nil {
			t.Errorf("zone %q", zone)
		}
	}
	if !(Schedule{}).After(at).IsZero() {
		t.Error("no schedule has a next time")
	}
}

func FuzzReadSchedule(f *testing.F) {
	for _, s := range []string{"*/5 * * * *", "0 0 1 1 0", "1-5,7 * * JAN MON", "@daily",
		"TZ= * * * *"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ReadSchedule(text, "")
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		if err == nil && s.After(now).Before(now) {
			t.Errorf("%q: %v", text, s.After(now))
		}
	})
}

// On the two odd days of a zone, a time of the day comes once, and what follows the time that passes
// comes as on other days.
func TestASchedulesDayHasNoOddHours(t *testing.T) {
	for _, c := range []struct{ text, zone, from, want string }{
		{"30 2 * * *", "Europe/Vienna", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z"}, // 3:00
		{"30 2 * * *", "Europe/Vienna", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"},
		{"0,30 2,3 * * *", "Europe/Vienna", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"},
		{"30 2 * * *", "Europe/Vienna", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z"},
		{"30 2 * * *", "Europe/Vienna", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"},
		{"30 2 * * *", "Europe/Vienna", "2026-10-25T01:10:00Z", "2026-10-26T01:30:00Z"},
		{"30 2 25 10 *", "Europe/Vienna", "2026-10-25T00:31:00Z", "2027-10-25T00:30:00Z"},
		{"30 2 29 3 *", "Europe/Vienna", "2026-01-01T00:00:00Z", "2026-03-29T01:00:00Z"},
		{"30 * * * *", "Europe/Vienna", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"},
		{"*/20 * * * *", "Europe/Vienna", "2026-03-29T00:45:00Z", "2026-03-29T01:00:00Z"},
		{"0 0 * * *", "America/Santiago", "2026-09-05T12:00:00Z", "2026-09-06T04:00:00Z"}, // no midnight
		{"15 0 * * *", "America/Havana", "2026-11-01T04:15:00Z", "2026-11-02T05:15:00Z"},  // twice
		{"30 2 * * *", "", "2026-03-28T12:00:00Z", "2026-03-29T02:30:00Z"},
		{"30 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00Z", "2026-10-03T15:30:00Z"},
	} {
		s, err := ReadSchedule(c.text, c.zone)
		if err != nil {
			t.Fatal(err)
		}
		from, _ := time.Parse(time.RFC3339, c.from)
		if got := s.After(from).Format(time.RFC3339); got != c.want {
			t.Errorf("%s in %s after %s is %s, want %s", c.text, c.zone, c.from, got, c.want)
		}
	}
}

// In a year, a time of the day comes on each day, in every zone and without a time that comes twice.
func TestAScheduleComesOnEachDayOfAYear(t *testing.T) {
	for _, zone := range []string{"Europe/Vienna", "America/Sao_Paulo", "Asia/Tehran", "Africa/Casablanca",
		"America/Havana", "Australia/Lord_Howe", "Pacific/Chatham", "UTC"} {
		s, err := ReadSchedule("15 0,2 * * *", zone)
		if err != nil {
			t.Fatal(err)
		}
		at, end, n := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), time.Date(2027, 1, 1, 12, 0, 0, 0, time.UTC), 0
		for at = s.After(at); at.Before(end); at = s.After(at) {
			n++
		}
		if n != 2*365 {
			t.Errorf("in %s it comes %d times a year", zone, n)
		}
	}
}
