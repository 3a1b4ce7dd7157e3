package runner

import (
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/flows"
)

// wire is the way of packets to an instance: its link and its place in the steering table.
type wire struct {
	connected   bool      // to the steering
	tried       time.Time // the time of the last attempt to connect
	unconnected error     // the error of that attempt
	entry       *entry    // the wait for the table; nil: none
}

// entry is the wait for the table that has the instance as its phase wants it.
type entry struct {
	phase   pando.Phase
	done    <-chan struct{}
	stop    func()
	inForce bool
}

// start is the stage that brings an instance from its placement into rotation.
type start struct {
	deadline time.Time // of its start, and then of readiness
	starting starting
	wait     time.Duration // before the next probe
	behind   bool          // its branch does not have the pushes since it was made
	fetching fetching
	hooking  hooking
	seeding  seeding
}

// starting is the start that an instance is in.
type starting struct {
	since time.Time // as in its record
	over  bool      // its startup probe has succeeded, or it has none
	asked time.Time // the last startup probe
}

// fetching brings the image or the bundle of an instance to this host while its record waits in
// phase placed.
type fetching struct {
	begun, done bool
	reference   string
	err         error
}

// hooking is the run of the hook recover. Its sandbox has the volumes of the ordinal, and ends
// before the program of the instance starts.
type hooking struct {
	begun bool
	box   pando.Sandbox
}

// seeding is the part of a start that takes and continues seeds.
type seeding struct {
	seeded  string // the seed that the instance continues
	began   string // how its program began; "": as ever
	storing bool   // its program is being stored
	stored  bool   // it was stored, or need not be
}

// renewal is the work that brings new secrets to a running instance.
type renewal struct {
	running bool
	again   bool   // they changed once more meanwhile
	said    string // why the last attempt failed, as recorded; "": it did not
}

// reconfiguring is the work that brings new configs to a running instance.
type reconfiguring struct {
	running bool
	again   bool // something changed once more meanwhile
	retries bool // a timer for the next attempt runs
	last    time.Time
	wait    time.Duration
	refused map[string]string // reasons, by the config that keeps an older content
}

// watch looks after an instance that serves or is in reserve.
type watch struct {
	probed   time.Time // the time of the last probe
	falls    int       // probes that failed in a row
	spared   bool      // it keeps its share although it does not answer, and that is recorded
	overload overload
}

// overload is the memory about an instance that is alive and does not answer in time.
type overload struct {
	used  time.Duration // processor time at the last look
	seen  time.Time     // the last look; zero: none
	since time.Time     // of the first look without an answer; zero: it answers
}

// leave takes an instance out: it waits for its flows and for its program.
type leave struct {
	ordered   time.Time // when this agent learned that it leaves, or zero
	counting  flows.Schedule
	uncounted time.Time // since when its flows cannot be counted, or zero
	unknown   error     // why they cannot be counted
	closed    time.Time // since when no new flow reaches it, or zero
	waiting   waiting
	stopping  bool      // its sandbox is being stopped
	stopped   bool      // it was
	said      time.Time // when the event drained was last sent, or zero
}

// waiting is the report of a drain on its connections.
type waiting struct {
	next  time.Time // the next report is due
	noted bool      // in the history of the service
}

// end merges the branch of an instance and removes the instance.
type end struct {
	left  pando.Sandbox    // it is out of sight, and not removed yet
	stale []pando.IntentID // its asks, of which one has changed
}
