package pando

import "context"

// LogFigures counts the lines of a daemon's log since its start.
type LogFigures struct {
	Warnings uint64 `json:"warnings"`
	Errors   uint64 `json:"errors"`
}

// StoreFigures are the sizes of the store of one server, in bytes.
type StoreFigures struct {
	FileBytes  int64 `json:"file_bytes"`  // of the database file
	UsedBytes  int64 `json:"used_bytes"`  // of its pages in use
	LimitBytes int64 `json:"limit_bytes"` // at which the store refuses writes
}

// ServerFigures are the counts of one server since its start. They feed GET /metrics.
type ServerFigures struct {
	Leads     bool         `json:"leads"` // its control decides
	Terms     uint64       `json:"terms"` // how often its control began to lead
	Lost      uint64       `json:"lost"`  // of them, ended because the leadership was lost
	Written   uint64       `json:"written"`
	Conflicts uint64       `json:"conflicts"` // writes on top of a record that had changed
	Failed    uint64       `json:"failed"`    // writes with any other error
	Store     StoreFigures `json:"store"`
	Log       LogFigures   `json:"log"`
	// Decisions counts new decisions of the whole cluster, also those of other servers.
	Decisions map[ServiceKey]map[DecisionKind]uint64 `json:"-"`
}

// SteeringFigures are the counts of one host's queue of tables since the start of its agent.
type SteeringFigures struct {
	Published uint64  `json:"published"`
	Failed    uint64  `json:"failed"`
	Seconds   float64 `json:"seconds"` // spent in both
	Waiting   int     `json:"waiting"` // jobs that are queued now
	Failing   int     `json:"failing"` // jobs with a failed last attempt
}

// LinkQueue is the queue of packets that a host sends by a device: to an instance, or by an uplink.
type LinkQueue struct {
	BacklogBytes   uint64 `json:"backlog_bytes,omitempty"` // that wait now
	BacklogPackets uint64 `json:"backlog_packets,omitempty"`
	Drops          uint64 `json:"drops,omitempty"` // packets, since the device was made
}

// HostFigures are the counts of one agent since its start, and the use of its instances. They feed
// GET /metrics/host.
type HostFigures struct {
	Host      HostName
	Version   string
	Instances []InstanceUsage
	Counters  []EndpointCounters // of every endpoint that the host steers
	Losses    Losses
	Uplinks   map[string]LinkQueue // by device
	Steering  SteeringFigures
	LeasesLost,
	Merges, MergesFailed, Conflicts uint64
	Shares int // of the VIPs, for which the host answers on its network
	Log    LogFigures
}

// HostReporter reports the figures of one host. The agent implements it.
type HostReporter interface {
	// HostFigures returns the newest figures. The use of an instance may be missing.
	HostFigures(ctx context.Context) (HostFigures, error)
}
