package pando

// Hearing is the address families by which an instance accepts at the ports of its service: "4", "6"
// or "46". "": nobody has looked, or nothing accepts. A name leads only to addresses that answer: it
// has an IPv6 address once every instance is known to accept by IPv6.
type Hearing string

// HearingBy returns the hearing of these families.
func HearingBy(v4, v6 bool) (h Hearing) {
	if v4 {
		h += "4"
	}
	if v6 {
		h += "6"
	}
	return h
}

// By4 reports whether IPv4 may be answered: nothing else is known.
func (h Hearing) By4() bool { return h != "6" }

// By6 reports whether IPv6 is answered.
func (h Hearing) By6() bool { return h == "6" || h == "46" }

// hearingOf returns the hearing of a service: the families by which all its instances with new flows
// accept. IPv4 is left out only if none of them accepts by it.
func hearingOf(instances []Instance) Hearing {
	v4, v6, any := false, true, false
	for n := range instances {
		if i := &instances[n]; i.Run == nil && i.Phase.TakesFlows() {
			any, v4, v6 = true, v4 || i.Hears.By4(), v6 && i.Hears.By6()
		}
	}
	if !any {
		return ""
	}
	return HearingBy(v4, v6)
}
