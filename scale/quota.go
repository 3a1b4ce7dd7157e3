package scale

import (
	"fmt"

	"pando.run/pando"
	"pando.run/pando/access"
)

// Use is the sum of the limits of some instances.
type Use struct {
	Instances   int
	MemoryBytes int64
	PIDs        int64
	CPUs        float64
}

// Of returns the use of n instances with the same limits.
func Of(n int, r pando.Resources) Use {
	return Use{n, int64(n) * r.MemoryBytes, 0, float64(n) * r.CPUs}
}

// Plus returns the sum of both uses.
func (u Use) Plus(o Use) Use {
	return Use{u.Instances + o.Instances, u.MemoryBytes + o.MemoryBytes, u.PIDs + o.PIDs,
		u.CPUs + o.CPUs}
}

// Minus returns u without o.
func (u Use) Minus(o Use) Use {
	return Use{u.Instances - o.Instances, u.MemoryBytes - o.MemoryBytes, u.PIDs - o.PIDs,
		u.CPUs - o.CPUs}
}

// cpuGrain is smaller than any limit that a spec can set. It absorbs the error of sums.
const cpuGrain = 1e-6

// Beyond returns the quota that a use exceeds, with its numbers, or "".
func Beyond(a access.Account, u Use) string {
	q := a.Quota
	over := func(name, is, most string) string {
		return fmt.Sprintf("tenant %s: quota %s: %s of at most %s", a.Tenant, name, is, most)
	}
	switch {
	case q.Instances > 0 && u.Instances > q.Instances:
		return over("instances", fmt.Sprint(u.Instances), fmt.Sprint(q.Instances))
	case q.CPUs > 0 && u.CPUs > q.CPUs+cpuGrain:
		return over("cpus", fmt.Sprintf("%g", u.CPUs), fmt.Sprintf("%g", q.CPUs))
	case q.MemoryBytes > 0 && u.MemoryBytes > q.MemoryBytes:
		return over("memory", mib(u.MemoryBytes), mib(q.MemoryBytes))
	}
	return ""
}

// Unbounded returns the limit that a spec must set because its tenant has a quota of it, or "".
func Unbounded(a access.Account, r pando.Resources) string {
	must := func(quota, field string) string {
		return fmt.Sprintf("tenant %s: quota %s: an instance without %s counts against no quota; set it",
			a.Tenant, quota, field)
	}
	switch {
	case a.Quota.CPUs > 0 && r.CPUs == 0:
		return must("cpus", "resources.cpus")
	case a.Quota.MemoryBytes > 0 && r.MemoryBytes == 0:
		return must("memory", "resources.memory")
	}
	return ""
}

// Hasty returns the quota that one more change of steering tables would exceed, or "". published
// counts the changes of the last second.
func Hasty(a access.Account, published int) string {
	rate := a.Quota.PublishPerSecond
	if rate == 0 || float64(published)+1 <= max(rate, 1) {
		return ""
	}
	return fmt.Sprintf("tenant %s: quota publish-rate: %d changes in the last second, of at most %g",
		a.Tenant, published, rate)
}

func mib(n int64) string { return fmt.Sprintf("%g MiB", float64(n)/(1<<20)) }
