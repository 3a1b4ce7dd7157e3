package sim

import (
	"slices"
	"sync"
	"testing"

	"pando.run/pando"
	"pando.run/pando/world"
)

// auditor audits commits on a goroutine outside the bubble, beside the run that writes them.
type auditor struct {
	auditing     sync.Mutex // guards the rest
	audit        *audit
	instancesMax int

	news chan []pando.Batch // nil: answer when all before it are audited
	done chan struct{}
}

// auditBatch is how many commits are audited while the lock is held.
const auditBatch = 100

func newAuditor(t *testing.T) *auditor {
	a := &auditor{audit: newAudit(t), news: make(chan []pando.Batch, 64), done: make(chan struct{})}
	a.audit.steps = stepsOf{}
	return a
}

// run audits until the channel of the news closes.
func (a *auditor) run() {
	for all := range a.news {
		if all == nil {
			a.done <- struct{}{}
		}
		for some := range slices.Chunk(all, auditBatch) {
			a.auditing.Lock()
			a.audit.replay(some)
			a.instancesMax = max(a.instancesMax, len(a.audit.world.Instances))
			a.auditing.Unlock()
		}
	}
}

// catchUp waits until all commits so far are audited.
func (a *auditor) catchUp() {
	a.news <- nil
	<-a.done
}

// view reads the world as far as it is audited.
func (a *auditor) view(do func(*world.World)) {
	a.auditing.Lock()
	defer a.auditing.Unlock()
	do(a.audit.world)
}

// failed reports whether a commit broke a rule.
func (a *auditor) failed() bool {
	a.auditing.Lock()
	defer a.auditing.Unlock()
	return a.audit.faults > 0
}
