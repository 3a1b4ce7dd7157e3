package scale

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
)

func TestADoorBoundsTheAsksOfAService(t *testing.T) {
	busy, quiet := pando.DefaultService("busy"), pando.DefaultService("quiet")
	now := time.Unix(1000, 0)
	var d Door
	for n := range AsksBurst {
		if err := d.Admit(busy, 0, now); err != nil {
			t.Fatalf("ask %d of a burst: %v", n, err)
		}
	}
	err := d.Admit(busy, 0, now)
	if !errors.Is(err, pando.ErrRefused) || !strings.Contains(err.Error(), "ask again in a second") {
		t.Errorf("an ask beyond the burst: %v", err)
	}
	if err := d.Admit(quiet, 0, now); err != nil {
		t.Errorf("an ask of another service: %v", err)
	}
	if err := d.Admit(busy, 0, now.Add(askWait)); err != nil {
		t.Errorf("an ask after the wait: %v", err)
	}
	if err := d.Admit(quiet, AsksWaitingMax, now); !errors.Is(err, pando.ErrRefused) {
		t.Errorf("an ask behind %d others: %v", AsksWaitingMax, err)
	}
	if err := d.Admit(quiet, AsksWaitingMax-1, now); err != nil {
		t.Errorf("the last ask that may wait: %v", err)
	}
}

// However the asks of services come, a door admits at most the burst and the rate of each, and it
// admits every ask of a service below the rate. It remembers only the services that asked lately.
func TestADoorHoldsItsRateAndForgets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d Door
		began := time.Unix(1000, 0)
		now := began
		admitted := map[pando.ServiceKey]int{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 300).Draw(t, "ms")) * time.Millisecond)
			s := pando.DefaultService(rapid.SampledFrom([]pando.ServiceName{"a", "b"}).Draw(t, "of"))
			for range rapid.IntRange(0, 400).Draw(t, "asks") {
				if d.Admit(s, 0, now) == nil {
					admitted[s]++
				}
			}
			most := AsksBurst + int(now.Sub(began)/askWait) + 1
			if admitted[s] > most {
				t.Fatalf("%d asks in %s, at most %d may enter", admitted[s], now.Sub(began), most)
			}
		}
		now = now.Add(time.Hour)
		if err := d.Admit(pando.DefaultService("new"), 0, now); err != nil || len(d.next) != 1 {
			t.Fatalf("%v; %d services are remembered after an hour, want the new one", err, len(d.next))
		}
	})
}
