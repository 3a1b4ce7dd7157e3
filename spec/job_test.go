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
	// On the 29th the clock goes from 2:00 to 3:00.
	if want := []string{"30 00:30", "31 00:30", "01 00:30"}; !reflect.DeepEqual(got, want) {
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
