// Package pando holds the nouns of Pando and the interfaces through which its rooms meet.
//
// It never does I/O, never reads a clock and never draws a random number: everything that touches the outside is a
// driver behind one of these interfaces, so that the same decisions run against the kernel and in a simulation.
package pando

// Layout is the version of every stored record and of every pinned map. A reader upgrades older layouts as it reads
// (see world.Decode); it refuses newer ones.
const Layout = 1

// DefaultTenant owns whatever names no tenant.
const DefaultTenant Tenant = "default"
