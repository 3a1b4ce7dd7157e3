// Package pando holds the nouns of Pando and the interfaces through which its rooms meet.
//
// It never does I/O, never reads a clock and never draws a random number. Drivers behind these
// interfaces touch the outside, so the same decisions run against the kernel and in a simulation.
package pando

// Layout is the version of every stored record and of every pinned map. A reader upgrades older
// layouts as it reads (see world.Decode) and refuses newer ones.
const Layout = 1

// DefaultTenant owns everything without a tenant.
const DefaultTenant Tenant = "default"
