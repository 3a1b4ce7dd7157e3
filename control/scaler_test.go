package control

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// meter is a host that counts the requests for its counters.
type meter struct {
	pando.HostAgent
	asked atomic.Int32
}

func (c *meter) Counters(context.Context) ([]pando.EndpointCounters, error) {
	c.asked.Add(1)
	return nil, nil
}

func TestNewsWithoutEndDoNotKeepTheScalerFromLooking(t *testing.T) {
	lead(t, 0, func(t *testing.T, l leadership) {
		host := &meter{}
		l.peers.Set("h1", host)
		spec := pando.Spec{Name: "web", Command: []string{"web"},
			Scale: pando.Scale{Max: 3, By: pando.ByConnections}}.WithDefaults()
		revision := pando.Revision{Service: web, Number: 1, Spec: spec, State: pando.RevisionCurrent}
		const looks = 10
		for end := time.Now().Add(looks * scaleInterval); time.Now().
			Before(end); time.Sleep(scaleInterval / 4) {
			_, err := l.registry.Commit(t.Context(), pando.Txn{Put: []pando.Stored{revision}})
			if err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := host.asked.Load(); n < looks/2 {
			t.Errorf("the counters were read %d times in %d intervals", n, looks)
		}
	})
}

// The scaler rests while no service is to be scaled. A service that begins to be scaled ends that.
func TestAServiceToScaleWakesTheScaler(t *testing.T) {
	lead(t, 0, func(t *testing.T, l leadership) {
		host := &meter{}
		l.peers.Set("h1", host)
		spec := pando.Spec{Name: "web", Command: []string{"web"}}.WithDefaults()
		put := func() {
			_, err := l.registry.Commit(t.Context(), pando.Txn{Put: []pando.Stored{pando.Revision{
				Service: web, Number: 1, Spec: spec, State: pando.RevisionCurrent}}})
			if err != nil {
				t.Fatal(err)
			}
		}
		spec.Scale.By = pando.ByNothing
		put()
		time.Sleep(2 * scaleRest)
		before := host.asked.Load()
		time.Sleep(2 * scaleRest)
		if n := host.asked.Load() - before; n > 0 {
			t.Errorf("the counters were read %d times for no service", n)
		}
		spec.Scale.By = pando.ByConnections
		put()
		time.Sleep(2 * scaleInterval)
		if host.asked.Load() == before {
			t.Errorf("the counters were not read within %s of the change", 2*scaleInterval)
		}
	})
}

// mute is a host that takes a call and never answers.
type mute struct {
	pando.HostAgent
	asked atomic.Int32
}

func (m *mute) Counters(ctx context.Context) ([]pando.EndpointCounters, error) {
	m.asked.Add(1)
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestASilentHostKeepsNoDecisionWaiting(t *testing.T) {
	lead(t, 0, func(t *testing.T, l leadership) {
		host := &mute{}
		l.peers.Set("h1", host)
		spec := pando.Spec{Name: "web", Command: []string{"web"},
			Scale: pando.Scale{Max: 100, By: pando.ByConnections, Target: 10}}.WithDefaults()
		_, err := l.registry.Commit(t.Context(), pando.Txn{Put: []pando.Stored{
			pando.Revision{Service: web, Number: 1, Spec: spec, State: pando.RevisionCurrent},
		}})
		if err != nil {
			t.Fatal(err)
		}
		const asks = 30
		for range asks {
			time.Sleep(37 * time.Millisecond)
			ask := l.ask()
			begun := time.Now()
			if _, err := l.registry.Commit(t.Context(), pando.Txn{Put: []pando.Stored{ask}}); err != nil {
				t.Fatal(err)
			}
			for {
				synctest.Wait()
				l.mirror.Mu.Lock()
				state := l.mirror.World.Intents[ask.ID].V.State
				l.mirror.Mu.Unlock()
				if state != pando.IntentAsked {
					break
				}
				if time.Since(begun) > time.Second {
					t.Fatalf("an ask has no answer after %s", time.Since(begun))
				}
				time.Sleep(time.Millisecond)
			}
			if wait := time.Since(begun); wait > 2*laterWait {
				t.Errorf("an ask waited %s for its answer beside a silent host", wait)
			}
		}
		if host.asked.Load() < 3 {
			t.Errorf("the silent host was asked %d times", host.asked.Load())
		}
	})
}

func TestTheCountersOfManyServicesAreReadOnce(t *testing.T) {
	lead(t, 0, func(t *testing.T, l leadership) {
		host := &meter{}
		l.peers.Set("h1", host)
		time.Sleep(time.Second)
		for range 100 { // as a scrape of /metrics does, one service after the other
			if _, err := l.Counters(t.Context(), web); err != nil {
				t.Fatal(err)
			}
		}
		if n := host.asked.Load(); n != 1 {
			t.Errorf("the host was asked %d times in one moment, want once", n)
		}
		time.Sleep(scaleInterval)
		if _, err := l.Counters(t.Context(), web); err != nil {
			t.Fatal(err)
		}
		if n := host.asked.Load(); n != 2 {
			t.Errorf("the host was asked %d times, want again after %s", n, scaleInterval)
		}
	})
}

// A host that does not answer is asked less and less often. It delays one reading in many, and the
// others are asked in each.
func TestASilentHostDelaysFewReadings(t *testing.T) {
	lead(t, 0, func(t *testing.T, l leadership) {
		silent, talks := &mute{}, &meter{}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for name, h := range map[pando.HostName]pando.HostAgent{"h2": silent, "h3": talks} {
			if _, _, err := l.registry.Join(ctx, pando.Host{Name: name}, time.Second); err != nil {
				t.Fatal(err)
			}
			l.peers.Set(name, h)
		}
		l.peers.Set("h1", &meter{})
		time.Sleep(time.Second)
		const readings = 100
		var waited time.Duration
		for range readings {
			begun := time.Now()
			if _, err := l.Counters(t.Context(), web); err != nil {
				t.Fatal(err)
			}
			waited += time.Since(begun)
			time.Sleep(scaleInterval)
		}
		if most := 10 * scaleInterval; waited > most {
			t.Errorf("%d readings took %s beside a silent host, want at most %s", readings, waited, most)
		}
		if n := talks.asked.Load(); n != readings {
			t.Errorf("the other host was asked %d times in %d readings", n, readings)
		}
		if n := silent.asked.Load(); n < 4 {
			t.Errorf("the silent host was asked %d times, want again from time to time", n)
		}
		l.peers.Set("h2", &meter{})
		time.Sleep(silenceMax)
		_, _ = l.Counters(t.Context(), web)
		if err := l.counters.errSilent("h2"); err != nil {
			t.Errorf("a host that answers again is silent: %v", err)
		}
	})
}
