package balance

// LeaveOut returns the dead hosts, which get no new flows. takers has a host for every instance
// that takes new flows. If all of them are dead, none is left out: a verdict may be wrong, and a
// service without instances is worse than one with doubtful instances.
func LeaveOut(takers []string, dead map[string]bool) map[string]bool {
	out := map[string]bool{}
	remains := false
	for _, h := range takers {
		if dead[h] {
			out[h] = true
		} else {
			remains = true
		}
	}
	if !remains {
		return nil
	}
	return out
}
