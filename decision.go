package pando

import "time"

// DecisionKind is the kind of a decision or an observation that is not an intent.
type DecisionKind string

const (
	DecidedDeploy    DecisionKind = "deploy"      // an operator deployed a spec
	DecidedRemove    DecisionKind = "remove"      // an operator removed the service
	DecidedPin       DecisionKind = "pin"         // an operator fixed the number of instances
	DecidedUnpin     DecisionKind = "unpin"       // scaling is automatic again
	DecidedNothing   DecisionKind = "nothing"     // the request changed nothing
	DecidedFailed    DecisionKind = "failed"      // an instance exited or never became ready
	DecidedEnded     DecisionKind = "ended"       // an instance did its work and exited with 0
	DecidedBackOff   DecisionKind = "back-off"    // the next start waits
	DecidedUnhealthy DecisionKind = "unhealthy"   // live probes failed
	DecidedRollout   DecisionKind = "rollout"     // a step of it
	DecidedRollback  DecisionKind = "rollback"    // the former revision serves again
	DecidedRestart   DecisionKind = "restart"     // an operator replaced instances
	DecidedPause     DecisionKind = "pause"       // an operator paused the rollout
	DecidedResume    DecisionKind = "resume"      // an operator let the rollout continue
	DecidedConflict  DecisionKind = "conflict"    // two versions of a state path were both kept
	DecidedSalvage   DecisionKind = "salvage"     // a crashed instance's branch was merged
	DecidedDrainEnd  DecisionKind = "drain-ended" // drain_seconds_max ended flows; Inputs counts them
	DecidedDrainWait DecisionKind = "drain-waits" // a drain waits for connections; Inputs counts them
	DecidedHostDrain DecisionKind = "host-drain"  // it stays on a drained host
	DecidedKeeper    DecisionKind = "keeper"      // the hosts with copies of its state change
	DecidedHostLost  DecisionKind = "host-lost"   // its lease ended with instances on it
	DecidedRecover   DecisionKind = "recover"     // the first ordinal after a crash of all, or a move
	DecidedForward   DecisionKind = "forward"     // an operator connected to a port of an instance
	DecidedLeader    DecisionKind = "leader"      // an ordinal leads, or leads no more
	DecidedExec      DecisionKind = "exec"        // an operator ran a command inside an instance
	DecidedSnapshot  DecisionKind = "snapshot"    // an operator stored a snapshot of an instance
	DecidedMove      DecisionKind = "move"        // an operator moved an instance, or could not
	DecidedRun       DecisionKind = "run"         // a run began, ended or was missed
	DecidedSecret    DecisionKind = "secret"      // a secret changed, or reached an instance
	DecidedConfig    DecisionKind = "config"      // a config of an instance changed, or could not
	DecidedQuota     DecisionKind = "quota"       // a start waits for a quota of the tenant
	DecidedUnwritten DecisionKind = "unwritten"   // in a status only: the store refuses the write
	DecidedRestored  DecisionKind = "restored"    // an instance that a restored backup lacked is back
	DecidedFrozen    DecisionKind = "frozen"      // in a status only: a record cannot be read
)

// OfAgents reports whether the agents of hosts write decisions of a kind. Only control writes the
// others.
func (k DecisionKind) OfAgents() bool {
	switch k {
	case DecidedFailed, DecidedEnded, DecidedUnhealthy, DecidedConflict, DecidedSalvage,
		DecidedDrainEnd, DecidedDrainWait, DecidedLeader, DecidedSnapshot, DecidedSecret,
		DecidedConfig, DecidedRestored:
		return true
	}
	return false
}

// Decision is one decision or observation of Pando, with its author, reason, inputs and threshold.
type Decision struct {
	ID       string             `json:"id"` // sorts by time
	Service  ServiceKey         `json:"service"`
	Instance InstanceID         `json:"instance,omitempty"`
	Kind     DecisionKind       `json:"kind"`
	By       Asker              `json:"by"`
	Reason   string             `json:"reason"`
	Inputs   map[string]float64 `json:"inputs,omitempty"`
	Lines    []string           `json:"lines,omitempty"` // a probe's answer, the end of a log
	At       time.Time          `json:"at"`
}

// InputTimes is the input of a decision that stands for several equal events: their number.
const InputTimes = "times"

// Times returns the number of equal events for which the decision stands. At is the time of the
// first one.
func (d Decision) Times() int { return max(1, int(d.Inputs[InputTimes])) }
