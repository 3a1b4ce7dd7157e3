package agent

import (
	"context"
	"time"

	"pando.run/pando"
)

// settleMax is how much longer than its drain and its stop an instance may take to be merged and gone.
const settleMax = 5 * time.Second

// leaveLook lies between two looks at what is left: the last step of an instance is no change in the registry.
const leaveLook = 20 * time.Millisecond

// Leave gives up this host: control places nothing on it any more and takes every instance out. Their connections may end by
// themselves for so long; then they are stopped as their specs say, and their states are merged. It returns how many
// instances are still there at the end of all that. Only a new agent takes instances again.
func (a *Agent) Leave(ctx context.Context, drain time.Duration) (left int, err error) {
	a.mu.Lock()
	a.leaveBy = a.Clock.Now().Add(drain)
	bound := a.leaveBy.Add(settleMax + a.longestStop())
	a.mu.Unlock()
	writes, cancel := context.WithTimeout(ctx, settleMax)
	defer cancel()
	a.kickAll()                                   // what drains ends then at the latest
	if _, err := a.joinOnce(writes); err != nil { // the record says that the host leaves
		return a.here(), err
	}
	for {
		a.mu.Lock()
		host, told := a.world.Hosts[a.Host.Name]
		left, news := len(a.runners), a.changed
		a.mu.Unlock()
		if told && host.V.Leaving && left == 0 || a.Clock.Now().After(bound) {
			return left, nil
		}
		if err := a.news(ctx, news, leaveLook); err != nil {
			return left, err
		}
	}
}

func (a *Agent) here() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.runners)
}

// longestStop is how long the slowest instance may take to end. The caller holds the lock.
func (a *Agent) longestStop() (most time.Duration) {
	for _, r := range a.everyRunner() {
		most = max(most, pando.Seconds(a.specOf(r.inst).StopSeconds))
	}
	return most
}
