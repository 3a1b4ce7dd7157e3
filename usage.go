package pando

import "time"

// InstanceUsage is the use of one instance at one moment.
type InstanceUsage struct {
	Instance InstanceID `json:"instance"`
	Service  ServiceKey `json:"service"`
	Host     HostName   `json:"host"`
	At       time.Time  `json:"at"`
	// CPUSeconds is the processor time since the start of the instance.
	CPUSeconds float64 `json:"cpu_seconds"`
	// MemoryBytes and PIDs, its processes and threads, are nil where nothing counts them.
	MemoryBytes *int64 `json:"memory_bytes,omitempty"`
	PIDs        *int64 `json:"pids,omitempty"`
	Connections int    `json:"connections"` // established at a VIP
	// BytesIn and BytesOut count all packets of its link since it started, with their headers.
	BytesIn  uint64 `json:"bytes_in,omitempty"`
	BytesOut uint64 `json:"bytes_out,omitempty"`
	// Health is that of the probes, with their newest answers, oldest first. "": of an earlier build.
	Health  HealthState   `json:"health,omitempty"`
	Answers []ProbeAnswer `json:"answers,omitempty"`
	// Metrics are the newest numbers of the application (PUT /v1/self/metrics).
	Metrics map[string]float64 `json:"metrics,omitempty"`
	// Flows is the number of new flows that its host steered to it since it was published.
	Flows uint64 `json:"flows,omitempty"`
	// Meter and Score are its newest measurement. Nil: its service is not measured.
	Meter *Meter `json:"meter,omitempty"`
	Score *Score `json:"score,omitempty"`
	// Queue is the queue of its link, at the host's end. Nil: unknown.
	Queue *LinkQueue `json:"queue,omitempty"`
	// The rest comes from the records of the cluster.
	Born     time.Time `json:"born,omitzero"`
	Phase    Phase     `json:"phase,omitempty"`
	Limits   Resources `json:"limits,omitzero"`
	Failures int       `json:"failures"` // of the service, since its newest deploy
	// Missing is the reason why the use is unknown.
	Missing string `json:"missing,omitempty"`
}
