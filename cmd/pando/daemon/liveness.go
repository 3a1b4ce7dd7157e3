package daemon

import (
	"log/slog"
	"net/netip"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/liveness"
	"pando.run/pando/edge"
)

// probes are the probes between hosts, if this host takes part in them.
type probes struct {
	liveness edge.Liveness // nil: it does not
	prober   *liveness.Prober
}

func (o probes) close() {
	if o.prober != nil {
		o.prober.Close()
	}
}

// openLiveness begins the probes between hosts. A host without --listen has none. A member of a
// cluster with a server of an earlier build has none either. A taken port only stops the probes.
func openLiveness(p place, c cluster, log *slog.Logger) probes {
	address, err := netip.ParseAddr(p.Address)
	if p.Listen == "" || c.probes == nil || err != nil {
		return probes{}
	}
	at, err := netip.ParseAddr(p.Listen)
	if err != nil {
		log.Warn("this host takes no part in the probes between hosts", "error", err)
		return probes{}
	}
	streams, err := listenTLS(p.open(pando.LivenessPort), c.identity.Members())
	if err != nil {
		log.Warn("this host takes no part in the probes between hosts", "error", err)
		return probes{}
	}
	prober, err := liveness.Open(liveness.Config{
		Own: pando.HostName(p.Host), Address: address, Listen: at, Key: c.probes, Listener: streams,
		ToHost: c.identity.ToHost, Clock: clock.Clock{},
	})
	if err != nil {
		streams.Close()
		log.Warn("this host takes no part in the probes between hosts", "error", err)
		return probes{}
	}
	return probes{prober, prober}
}
