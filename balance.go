package pando

import (
	"fmt"
	"time"
)

// BalanceBy is the policy that chooses the instance of a new flow.
type BalanceBy string

// Policies. An established flow stays with its instance under each of them.
const (
	// ByHash is the default. The table of weights alone decides. It needs no measurement, and every
	// host makes the same choice.
	ByHash BalanceBy = "hash"
	// ByRoundRobin takes the instances in turn, by name.
	ByRoundRobin BalanceBy = "round-robin"
	// ByHaven is HAVEN's Fig. 5: the least score among those with the fewest flows since the last
	// scores.
	ByHaven BalanceBy = "haven"
	// ByScore draws two instances from the table of weights and takes the one with the lower score.
	ByScore BalanceBy = "score"
	// ByLeastFlows draws two likewise and takes the one with fewer live flows.
	ByLeastFlows BalanceBy = "least-flows"
	// ByClient is ByHash of the client's address alone: a client stays at one instance while no
	// instance comes or goes.
	ByClient BalanceBy = "client"
)

// BalanceKinds lists every policy, in the order of enum balance_by in bpf/pando.h.
var BalanceKinds = []BalanceBy{ByHash, ByRoundRobin, ByHaven, ByScore, ByLeastFlows, ByClient}

// BalanceAt is the moment of the choice.
type BalanceAt string

const (
	// AtPacket is the default. The first packet of a flow gets its instance, and the others follow.
	AtPacket BalanceAt = "packet"
	// AtConnect also gives the sockets of instances and hosts an instance in place of the VIP. Their
	// packets pass no table. Clients outside are served as by AtPacket.
	AtConnect BalanceAt = "connect"
)

// BalancePlaces lists the moments of the choice.
var BalancePlaces = []BalanceAt{AtPacket, AtConnect}

// Balance chooses the instances of new flows. The zero value is ByHash. It is comparable.
type Balance struct {
	By BalanceBy `json:"by,omitempty"` // ByHash
	// Weights are those of the score. All zero: WeightsDefault.
	Weights Weights `json:"weights,omitzero"`
	// EverySeconds is the time between two measurements: 0.1.
	EverySeconds float64 `json:"every_seconds,omitempty"`
	// At is the moment of the choice: AtPacket.
	At BalanceAt `json:"at,omitempty"`
}

// Weights are the importance of resources in a score (w of HAVEN Fig. 4).
type Weights struct {
	Bandwidth float64 `json:"bandwidth,omitempty"` // of the path to the instance
	CPU       float64 `json:"cpu,omitempty"`       // of its limit, or of its host
	Memory    float64 `json:"memory,omitempty"`    // likewise
	Pressure  float64 `json:"pressure,omitempty"`  // time that it waited for its processor limit
	Stall     float64 `json:"stall,omitempty"`     // time that it waited for memory (PSI)
	Loss      float64 `json:"loss,omitempty"`      // segments that it sent again
	RTT       float64 `json:"rtt,omitempty"`       // round trip time to its clients, of RTTFull
	Queue     float64 `json:"queue,omitempty"`     // bytes that wait on its link, of QueueFull
}

// RTTFull is the round trip time that counts as a whole share.
const RTTFull = 100 * time.Millisecond

// QueueFull is the number of waiting bytes that counts as a whole share: the 1,000 frames of 1,500
// bytes that Linux queues for a device by default.
const QueueFull = 1_500_000

// WeightsDefault are the weights of a spec without weights. The meters of the network also depend
// on the clients, so they count only in a spec that asks for them.
var WeightsDefault = Weights{Bandwidth: 1, CPU: 1, Memory: 1, Pressure: 1}

// Bounds of the time between two measurements.
const (
	MeterMin     = 50 * time.Millisecond
	MeterDefault = 100 * time.Millisecond
	MeterMax     = 5 * time.Second
)

// WithDefaults returns the policy with every default filled in.
func (b Balance) WithDefaults() Balance {
	if b.By == "" {
		b.By = ByHash
	}
	if b.At == "" {
		b.At = AtPacket
	}
	if b.Weights == (Weights{}) {
		b.Weights = WeightsDefault
	}
	if b.EverySeconds == 0 {
		b.EverySeconds = MeterDefault.Seconds()
	}
	return b
}

// Every returns the time between two measurements, within its bounds.
func (b Balance) Every() time.Duration {
	return min(max(Seconds(b.WithDefaults().EverySeconds), MeterMin), MeterMax)
}

// Scored reports whether the policy needs measurements.
func (b Balance) Scored() bool { return b.By == ByHaven || b.By == ByScore }

// Check returns nil if the policy can be obeyed, else the reason.
func (b Balance) Check() error {
	for _, w := range []float64{
		b.Weights.Bandwidth, b.Weights.CPU, b.Weights.Memory, b.Weights.Pressure, b.Weights.Stall,
		b.Weights.Loss, b.Weights.RTT, b.Weights.Queue,
	} {
		if !(w >= 0 && w <= WeightMax) {
			return fmt.Errorf("%w: balance.weights: %g: want 0 to %g", ErrInvalid, w, WeightMax)
		}
	}
	every := Seconds(b.EverySeconds)
	if b.EverySeconds != 0 && (every < MeterMin || every > MeterMax) {
		return fmt.Errorf("%w: balance.every: %s: want %s to %s", ErrInvalid, every, MeterMin, MeterMax)
	}
	if b.By == ByClient && b.At == AtConnect {
		return fmt.Errorf("%w: balance.at: connect, and a socket has no address yet: drop it, or take "+
			"another policy than client", ErrInvalid)
	}
	return nil
}

// WeightMax bounds a weight.
const WeightMax = 1000.0

// Meter is one measurement of an instance by its host. A share is 1 at the limit of the instance,
// or at the size of its host if it has none.
type Meter struct {
	Instance InstanceID `json:"instance"`
	Service  ServiceKey `json:"service"`
	CPU      float64    `json:"cpu"` // share
	// Processors is the mean number of processors in use. 0: none, or not known.
	Processors float64 `json:"processors,omitempty"`
	Memory     float64 `json:"memory"`   // share
	Pressure   float64 `json:"pressure"` // share of the time that its processor limit held it back
	// Stall is the share of the time that it waited for memory. 0 under control groups of version 1.
	Stall float64 `json:"stall,omitempty"`
	// Loss is the share of resent segments, and RTTSeconds the mean round trip time, of TCP
	// connections that it accepted while it was measured. 0: it has none.
	Loss       float64 `json:"loss,omitempty"`
	RTTSeconds float64 `json:"rtt_seconds,omitempty"`
	// Queue is the share of QueueFull that waits on its link. A dropped packet fills it. 0 also if no
	// service of its host has a weight for it.
	Queue float64 `json:"queue,omitempty"`
	// Metrics are the newest numbers of the application (PUT /v1/self/metrics).
	Metrics map[string]float64 `json:"metrics,omitempty"`
}

// Meters are the measurements of one host at one moment.
type Meters struct {
	Host HostName  `json:"host"`
	At   time.Time `json:"at"`
	// Link is the use of the host's busiest uplink: a share of its speed. 0 if the speed is not
	// known.
	Link float64 `json:"link,omitempty"`
	All  []Meter `json:"all"`
}

// Score is the score of one endpoint, as the steering of a host uses it. Lower is better.
type Score struct {
	Instance InstanceID `json:"instance"`
	Value    float64    `json:"value"`
	// Excluded endpoints get a new flow only if every candidate is excluded.
	Excluded bool `json:"excluded,omitempty"`
}
