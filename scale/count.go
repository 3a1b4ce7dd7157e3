package scale

import "pando.run/pando"

// Count is the number of instances of each kind. It follows changes one by one, so a decision
// about many instances counts them once.
type Count struct {
	Capacity   int // serve or soon will
	Serving    int // take new flows, once the steering of their host has them
	InRotation int // take new flows: the steering of their host has them
	Present    int // in any phase, except the reserve
}

// CountOf returns the count of some instances.
func CountOf(instances []pando.Instance) Count {
	var c Count
	for i := range instances {
		c.add(&instances[i], 1)
	}
	return c
}

// With returns the count with one instance more.
func (c Count) With(i pando.Instance) Count {
	c.add(&i, 1)
	return c
}

// Without returns the count with one instance less.
func (c Count) Without(i pando.Instance) Count {
	c.add(&i, -1)
	return c
}

// Plus returns the sum of both counts.
func (c Count) Plus(o Count) Count {
	return Count{c.Capacity + o.Capacity, c.Serving + o.Serving, c.InRotation + o.InRotation,
		c.Present + o.Present}
}

// NextRole returns the role of the next instance: first if none serves or soon will.
func (c Count) NextRole() pando.Role {
	if c.Capacity == 0 {
		return pando.RoleFirst
	}
	return pando.RoleReplica
}

func (c *Count) add(i *pando.Instance, n int) {
	if i.Capacity() {
		c.Capacity += n
	}
	if i.Phase.TakesFlows() {
		c.Serving += n
	}
	if i.Phase == pando.PhaseInRotation {
		c.InRotation += n
	}
	if !i.Warm {
		c.Present += n
	}
}

// Capacity counts the instances that serve or soon will.
func Capacity(instances []pando.Instance) int { return CountOf(instances).Capacity }

// Serving counts the instances that take new flows, once the steering of their host has them.
func Serving(instances []pando.Instance) int { return CountOf(instances).Serving }
