// Package sim holds the simulation: the control loop and the agents as they are, over driver/sim, in virtual time
// (testing/synctest). A seed says what applications and operators ask for, what fails and when; what has happened is then
// held against the rules that must hold whatever happens.
//
// It never touches a file, a socket or the kernel. One seed gives the same asks and the same faults at the same virtual
// times, and almost always the same run, byte by byte (TestASeedIsOneRun): nothing hangs on the order of a map, on a select
// or on who draws first. Left to the runtime are goroutines that it preempts and timers that end at the same instant.
// PANDO_SEED runs one seed, PANDO_RUNS says how many are run (`make soak N=…`).
package sim
